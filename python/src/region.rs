//! Regions: named parts of the run of this program, recorded by the preloaded tracer.
//!
//! The functions of the C interface (`miot.h`) are looked up in the process. Without them, or while
//! nothing is recorded, a region does nothing.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};
use smallvec::SmallVec;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

/// `struct miot_region` of `miot.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct CRegion {
    request: [u64; 3],
    name: *const c_char,
    attributes: *const c_char,
    number: u64,
}

/// `MIOT_NONE`.
const NONE: u64 = u64::MAX;
/// Result of a region that an exception without an error number ended.
const CANCELED: i64 = -(libc::ECANCELED as i64);

/// Functions of the tracer in this process.
#[derive(Debug)]
struct Tracer {
    dormant: unsafe extern "C" fn() -> c_int,
    begin: unsafe extern "C" fn(*const c_char, *const c_char, u64) -> CRegion,
    end: unsafe extern "C" fn(*const CRegion, i64) -> c_int,
    cancel: unsafe extern "C" fn(*const CRegion),
}

fn tracer() -> Option<&'static Tracer> {
    static TRACER: OnceLock<Option<Tracer>> = OnceLock::new();
    TRACER.get_or_init(find_tracer).as_ref()
}

fn find_tracer() -> Option<Tracer> {
    let symbol = |name: &CStr| {
        // SAFETY: `dlsym` requires
        // - a valid handle and a C string: `RTLD_DEFAULT`, and a parameter of that type.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let dormant = symbol(c"miot_dormant")?;
    let (begin, end) = (symbol(c"miot_region_begin")?, symbol(c"miot_region_end")?);
    let cancel = symbol(c"miot_region_cancel")?;
    // SAFETY: the conversions require
    // - functions of these types: `miot.h` declares functions with these names so, and only MIOT
    //   exports them.
    unsafe {
        Some(Tracer {
            dormant: std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_int>(dormant),
            begin: std::mem::transmute::<
                *mut libc::c_void,
                unsafe extern "C" fn(*const c_char, *const c_char, u64) -> CRegion,
            >(begin),
            end: std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(*const CRegion, i64) -> c_int>(
                end,
            ),
            cancel: std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(*const CRegion)>(cancel),
        })
    }
}

/// An open region.
#[derive(Debug)]
struct Open {
    region: CRegion,
    /// Distinguishes threads.
    thread: usize,
    // `region` points to the texts.
    _name: Arc<CStr>,
    _attributes: Arc<CStr>,
}

// SAFETY: `Send` requires
// - pointers that any thread may use: they point to the texts in the same value, which never
//   change, and the functions of the tracer may be called in any thread.
unsafe impl Send for Open {}

/// Returns a number of the calling thread, which no other thread has at the same time.
fn thread() -> usize {
    thread_local!(static ANCHOR: u8 = const { 0 });
    ANCHOR.with(|anchor| std::ptr::from_ref(anchor).addr())
}

/// A named part of the run of this program, from `miot.region`.
///
/// An object may be entered again, also while it is open.
#[pyclass(module = "miot", frozen, freelist = 16)]
#[derive(Debug)]
pub(crate) struct Region {
    name: Py<PyString>,
    attributes: Py<PyDict>,
    open: Mutex<SmallVec<[Open; 1]>>,
}

/// A string of Python and its text.
type KnownText = (Py<PyString>, Arc<CStr>);

/// Texts of strings of Python, by the address of the string: programs pass the same strings again
/// and again, and their conversion takes longer than a region. A new string replaces the one at its
/// place.
#[derive(Debug)]
struct Texts([Option<KnownText>; Texts::KEPT]);

impl Texts {
    /// Number of strings that are kept.
    const KEPT: usize = 256;

    const fn new() -> Texts {
        Texts([const { None }; Texts::KEPT])
    }

    /// Returns the text of a string, followed by `end`.
    fn of(&mut self, string: &Bound<'_, PyString>, end: &str) -> Arc<CStr> {
        let kept = &mut self.0[string.as_ptr().addr() / 16 % Texts::KEPT];
        if let Some((known, text)) = kept
            && known.as_ptr() == string.as_ptr()
        {
            return Arc::clone(text);
        }
        let text = c_string(string.to_string_lossy().into_owned() + end);
        *kept = Some((string.clone().unbind(), Arc::clone(&text)));
        text
    }
}

/// Names of regions, and names of attributes, each with a sign of equality.
static TEXTS: Mutex<(Texts, Texts)> = Mutex::new((Texts::new(), Texts::new()));

/// The text of no attributes.
static EMPTY: LazyLock<Arc<CStr>> = LazyLock::new(|| Arc::from(c""));

/// Locks a value. Only threads that hold the interpreter do, and they do not release it meanwhile,
/// so that a child of `fork` finds the value unlocked.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a C string with the bytes up to the first NUL.
fn c_string(text: String) -> Arc<CStr> {
    let mut bytes = text.into_bytes();
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    CString::new(bytes).unwrap_or_default().into()
}

/// Attributes as the tracer takes them: a text, and the number that follows it.
#[derive(Debug)]
struct Attributes {
    text: Arc<CStr>,
    number: u64,
}

/// Returns the value of an integer below 2⁶³ that is not negative.
fn number(value: &Bound<'_, PyAny>) -> Option<u64> {
    let is_number = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
    let number = if is_number { value.extract::<u64>().ok() } else { None };
    number.filter(|number| *number < 1 << 63)
}

impl Attributes {
    /// The number is the last value that is one, and stands at the end. An attribute whose value
    /// cannot be converted is left out: a region must not end the program.
    fn of_several(given: &Bound<'_, PyDict>) -> Attributes {
        if given.is_empty() {
            return Attributes { text: Arc::clone(&EMPTY), number: NONE };
        }
        // Place among the texts, text before the number, number.
        let mut last: Option<(usize, String, u64)> = None;
        let mut texts = Vec::new();
        for (key, value) in given {
            let key = key.str().map_or_else(|_| String::new(), |key| key.to_string_lossy().into_owned());
            if let Some(number) = number(&value) {
                last = Some((texts.len(), format!("{key}="), number));
            }
            let Ok(value) = value.str() else { continue };
            texts.push(format!("{key}={}", value.to_string_lossy().replace([',', '\n'], " ")));
        }
        let number = last.map_or(NONE, |(place, text, number)| {
            texts.remove(place);
            texts.push(text);
            number
        });
        Attributes { text: c_string(texts.join(",")), number }
    }
}

/// Returns the name and the number of the only attribute, if it is a number.
fn only_number<'py>(given: &Bound<'py, PyDict>) -> Option<(Bound<'py, PyString>, u64)> {
    if given.len() != 1 {
        return None;
    }
    let (key, value) = given.iter().next()?;
    Some((key.cast_into().ok()?, number(&value)?))
}

impl Region {
    /// Returns the texts of the name and the attributes.
    fn texts(&self, py: Python<'_>) -> (Arc<CStr>, Attributes) {
        let (name, given) = (self.name.bind(py), self.attributes.bind(py));
        if let Some((key, number)) = only_number(given) {
            let (names, keys) = &mut *lock(&TEXTS);
            return (names.of(name, ""), Attributes { text: keys.of(&key, "="), number });
        }
        // The conversion of the values may run code of the program.
        let several = Attributes::of_several(given);
        (lock(&TEXTS).0.of(name, ""), several)
    }

    fn begin(&self, py: Python<'_>) {
        let Some(tracer) = tracer() else { return };
        // SAFETY: the call requires
        // - a function of the tracer: looked up by its name; it takes no arguments.
        if unsafe { (tracer.dormant)() } != 0 {
            return;
        }
        let (name, Attributes { text, number }) = self.texts(py);
        // SAFETY: the call requires
        // - C strings that stay valid until the region ends: they are kept beside it.
        let region = unsafe { (tracer.begin)(name.as_ptr(), text.as_ptr(), number) };
        lock(&self.open).push(Open { region, thread: thread(), _name: name, _attributes: text });
    }

    /// Removes the region that the calling thread has opened last; if it has opened none, the last
    /// of all: a region may end in another thread.
    fn take(&self) -> Option<Open> {
        let mut open = lock(&self.open);
        let own = if open.len() > 1 { open.iter().rposition(|open| open.thread == thread()) } else { None };
        match own {
            Some(at) => Some(open.remove(at)),
            None => open.pop(),
        }
    }

    fn end(&self, result: i64) {
        let Some((tracer, open)) = tracer().zip(self.take()) else { return };
        // SAFETY: the call requires
        // - a region whose texts are valid: `open` holds both.
        unsafe { (tracer.end)(&raw const open.region, result) };
    }
}

/// Returns the result of a region that this exception ended.
fn result_of(exception: &Bound<'_, PyAny>) -> i64 {
    let is_os_error = exception.is_instance_of::<PyOSError>();
    let number = if is_os_error { exception.getattr("errno").ok() } else { None };
    let number = number.and_then(|number| number.extract::<i32>().ok()).filter(|number| *number > 0);
    number.map_or(CANCELED, |number| -i64::from(number))
}

#[pymethods]
impl Region {
    /// Keeps the dictionary. It is a positional argument, because PyO3 copies named ones.
    #[new]
    #[pyo3(signature = (name, attributes, /))]
    fn new(name: Py<PyString>, attributes: Py<PyDict>) -> Region {
        Region { name, attributes, open: Mutex::default() }
    }

    fn __enter__(slf: Bound<'_, Region>) -> Bound<'_, Region> {
        slf.get().begin(slf.py());
        slf
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.end(if value.is_none() { 0 } else { result_of(value) });
    }

    /// Ends an entered region without recording it.
    fn cancel(&self) {
        let Some((tracer, open)) = tracer().zip(self.take()) else { return };
        // SAFETY: the call requires
        // - a region whose texts are valid: `open` holds both.
        unsafe { (tracer.cancel)(&raw const open.region) };
    }

    /// Returns a new region with the same name and attributes, and these in addition.
    #[pyo3(signature = (**attributes))]
    fn again(&self, py: Python<'_>, attributes: Option<&Bound<'_, PyDict>>) -> PyResult<Region> {
        let all = match attributes {
            None => self.attributes.clone_ref(py),
            Some(more) => {
                let all = self.attributes.bind(py).copy()?;
                all.update(more.as_mapping())?;
                all.unbind()
            }
        };
        Ok(Region { name: self.name.clone_ref(py), attributes: all, open: Mutex::default() })
    }

    /// Returns a function each of whose calls is such a region.
    fn __call__<'py>(slf: &Bound<'py, Region>, function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("miot._region")?.getattr("decorated")?.call1((slf, function))
    }

    /// Iterates over the items; each retrieval of an item is such a region.
    #[pyo3(name = "iter", signature = (iterable, number = "step"))]
    fn retrieve_items<'py>(
        slf: &Bound<'py, Region>,
        iterable: &Bound<'py, PyAny>,
        number: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("miot._region")?.getattr("retrievals")?.call1((slf, iterable, number))
    }

    /// Iterates over the items; the use of each item by the loop is such a region.
    #[pyo3(name = "loop", signature = (iterable, number = "step"))]
    fn use_items<'py>(
        slf: &Bound<'py, Region>,
        iterable: &Bound<'py, PyAny>,
        number: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("miot._region")?.getattr("uses")?.call1((slf, iterable, number))
    }
}

/// Returns whether a tracer with regions is in this process.
#[pyfunction]
pub(crate) fn preloaded() -> bool {
    tracer().is_some()
}

/// Returns whether regions are recorded now: a tracer is preloaded and not dormant.
#[pyfunction]
pub(crate) fn recording() -> bool {
    // SAFETY: the call requires
    // - a function of the tracer: looked up by its name; it takes no arguments.
    tracer().is_some_and(|tracer| unsafe { (tracer.dormant)() } == 0)
}
