//! Lookup of libc's functions at the start of a program, without the loader.
//!
//! `dlsym(RTLD_NEXT)` takes 0.2 µs for each function. A lookup here takes a fraction of that,
//! because it knows the hash of the name and looks into few libraries: those behind this one, which
//! are normally libc and the loader. It answers only the simple case: the first library that
//! defines the name is libc, and the symbol is a function with a default version. In any other case
//! the caller queries the loader.

use std::ffi::{CStr, c_char, c_void};

/// Hash of a symbol's name in a table of type `DT_GNU_HASH`.
pub(crate) const fn hash(name: &[u8]) -> u32 {
    let (mut hash, mut at) = (5381u32, 0);
    while at < name.len() && name[at] != 0 {
        hash = hash.wrapping_mul(33).wrapping_add(name[at] as u32);
        at += 1;
    }
    hash
}

/// A loaded object; the start of glibc's and musl's `struct link_map` (`link.h`).
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

/// `ElfW(Dyn)`.
#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

/// `ElfW(Sym)` of 64 bits.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

/// `struct r_debug` (`link.h`).
#[repr(C)]
struct Debug {
    version: i32,
    map: *const LinkMap,
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    /// The loader's list of objects.
    static _r_debug: Debug;
    /// The dynamic section of this library; defined by the linker.
    static _DYNAMIC: Dynamic;
}

/// Symbols of an object.
#[derive(Clone, Copy)]
struct Symbols {
    base: usize,
    is_libc: bool,
    /// `DT_GNU_HASH`, `DT_SYMTAB`, `DT_STRTAB`, `DT_VERSYM`.
    hashes: *const u32,
    symbols: *const Symbol,
    names: *const c_char,
    versions: *const u16,
}

/// The objects behind this library, in the order in which the loader searches them.
pub(crate) struct Objects {
    objects: [Option<Symbols>; Objects::MAX],
}

/// Result of a search in one object.
enum Found {
    Nothing,
    Function(*mut c_void),
    /// A definition that is not the simple case.
    Other,
}

impl Objects {
    /// A program with more objects behind this library queries the loader.
    const MAX: usize = 4;

    /// Returns the objects behind this library. `None` if they cannot be searched here.
    ///
    /// # Safety
    /// - No other thread loads or unloads libraries during the call: it is made in a constructor.
    #[unsafe(link_section = ".text.startup")]
    #[cfg(target_env = "gnu")]
    pub(crate) unsafe fn behind() -> Option<Objects> {
        let mut objects = [None; Objects::MAX];
        let mut count = 0;
        let mut own = false;
        // SAFETY:
        // - The loader's list consists of valid objects and ends in null, and nobody changes it.
        unsafe {
            let mut map = _r_debug.map;
            while let Some(object) = map.as_ref() {
                if own {
                    *objects.get_mut(count)? = Some(Symbols::of(object)?);
                    count += 1;
                }
                own |= std::ptr::eq(object.dynamic, &raw const _DYNAMIC);
                map = object.next;
            }
        }
        (count > 0).then_some(Objects { objects })
    }

    /// Of another libc than glibc nothing is known here.
    #[cfg(not(target_env = "gnu"))]
    pub(crate) unsafe fn behind() -> Option<Objects> {
        None
    }

    /// Returns the function of this name and [`hash`], or null if the loader must be queried.
    ///
    /// # Safety
    /// - `name` is a C string.
    /// - The objects are loaded.
    #[unsafe(link_section = ".text.startup")]
    pub(crate) unsafe fn find(&self, name: *const c_char, hash: u32) -> *mut c_void {
        for symbols in self.objects.iter().flatten() {
            // SAFETY:
            // - Both requirements are those of this function.
            match unsafe { symbols.find(name, hash) } {
                Found::Nothing => {}
                Found::Function(at) => return at,
                Found::Other => break,
            }
        }
        std::ptr::null_mut()
    }
}

impl Symbols {
    /// Returns the symbols of an object. `None` if it lacks a table.
    ///
    /// # Safety
    /// - The object is loaded.
    #[inline(always)]
    unsafe fn of(object: &LinkMap) -> Option<Symbols> {
        const SYMBOLS: usize = 6;
        const NAMES: usize = 5;
        const HASHES: usize = 0x6fff_fef5;
        const VERSIONS: usize = 0x6fff_fff0;
        let (mut hashes, mut symbols, mut names, mut versions) = (0, 0, 0, 0);
        let mut entry = object.dynamic;
        // SAFETY:
        // - The dynamic section of a loaded object ends in an entry with the tag zero.
        unsafe {
            while (*entry).tag != 0 {
                match (*entry).tag {
                    HASHES => hashes = (*entry).value,
                    SYMBOLS => symbols = (*entry).value,
                    NAMES => names = (*entry).value,
                    VERSIONS => versions = (*entry).value,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        // The loader has replaced offsets by addresses, or has left them.
        let tables = [hashes, symbols, names, versions];
        if tables.contains(&0) {
            return None;
        }
        let [hashes, symbols, names, versions] =
            tables.map(|at| if at < object.base { object.base + at } else { at });
        // SAFETY:
        // - The name of a loaded object is null or a C string.
        let is_libc = !object.name.is_null()
            && unsafe { CStr::from_ptr(object.name) }.to_bytes().ends_with(b"/libc.so.6");
        Some(Symbols {
            base: object.base,
            is_libc,
            hashes: hashes as *const u32,
            symbols: symbols as *const Symbol,
            names: names as *const c_char,
            versions: versions as *const u16,
        })
    }

    /// Searches an object, as the loader does: a Bloom filter, a bucket, a chain.
    ///
    /// # Safety
    /// - `name` is a C string.
    /// - The object is loaded.
    #[inline(always)]
    unsafe fn find(&self, name: *const c_char, hash: u32) -> Found {
        const FUNCTION: u8 = 2;
        const HIDDEN_VERSION: u16 = 0x8000;
        // SAFETY:
        // - The tables of a loaded object have the form that their format prescribes: a header of
        //   four words, the words of the filter, a bucket each, and chains that end in an odd hash.
        let (chains, first, mut index) = unsafe {
            let [buckets, first, words, shift] = self.hashes.cast::<[u32; 4]>().read();
            let filter = self.hashes.add(4).cast::<u64>();
            let word = filter.add(((hash / 64) & (words - 1)) as usize).read();
            if word >> (hash % 64) & word >> (hash >> shift & 63) & 1 == 0 {
                return Found::Nothing;
            }
            let bucket = filter.add(words as usize).cast::<u32>();
            (bucket.add(buckets as usize), first, bucket.add((hash % buckets) as usize).read())
        };
        if index < first {
            return Found::Nothing;
        }
        loop {
            // SAFETY:
            // - `index` is in the chain of the bucket: the last entry of a chain ends the loop.
            // - The tables of symbols and versions have an entry for each index of a chain, and
            //   that of a symbol has the offset of its name, a C string.
            let (chained, symbol, is_found) = unsafe {
                let chained = chains.add((index - first) as usize).read();
                let symbol = &*self.symbols.add(index as usize);
                let is_found = chained | 1 == hash | 1
                    && symbol.section != 0
                    && self.versions.add(index as usize).read() & HIDDEN_VERSION == 0
                    && libc::strcmp(self.names.add(symbol.name as usize), name) == 0;
                (chained, symbol, is_found)
            };
            if is_found {
                return match self.is_libc && symbol.info & 15 == FUNCTION {
                    true => Found::Function((self.base + symbol.value) as *mut c_void),
                    false => Found::Other,
                };
            }
            if chained & 1 != 0 {
                return Found::Nothing;
            }
            index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Objects, hash};
    use std::ffi::CStr;

    /// In a test program the functions are not hooked, so that the loader's first definition is the
    /// one behind the program.
    #[test]
    fn functions_are_those_that_the_loader_finds() {
        // SAFETY:
        // - Nothing in this test program loads libraries.
        let objects = unsafe { Objects::behind() }.unwrap();
        const NAMES: [&CStr; 8] =
            [c"open", c"open64", c"pread64", c"stat", c"close", c"fork", c"syscall", c"ftruncate64"];
        for name in NAMES {
            // SAFETY:
            // - The names are C strings.
            // - All objects stay loaded.
            unsafe {
                let found = objects.find(name.as_ptr(), hash(name.to_bytes()));
                assert_eq!(found, libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()), "{name:?}");
            }
        }
        for name in [c"no_such_function", c"environ"] {
            // SAFETY:
            // - As above.
            let found = unsafe { objects.find(name.as_ptr(), hash(name.to_bytes())) };
            assert!(found.is_null(), "{name:?}");
        }
    }

    #[test]
    fn hash_is_that_of_the_format() {
        // From the description of DT_GNU_HASH.
        for (name, expected) in
            [("", 0x1505), ("printf", 0x156b_2bb8), ("exit", 0x7c96_7e3f), ("syscall", 0xbac2_12a0)]
        {
            assert_eq!(hash(name.as_bytes()), expected, "{name}");
        }
    }
}
