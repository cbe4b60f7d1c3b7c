//! Puts one file of the trace into the store, and checks on the way that it is what was sealed.

use crate::address::Store;
use crate::error::Error;
use bytes::Bytes;
use miot_trace_store::upload::UploadFile;
use object_store::{ObjectStoreExt as _, PutMode, WriteMultipart};
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

/// Bytes of one request. A file up to this size is put by one request.
const CHUNK_BYTES: usize = 8 << 20;
/// Requests of one file in progress at the same time.
const MAX_IN_PROGRESS: usize = 4;

/// Length and CRC-32C of what was read.
#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: u64,
    crc32c: u32,
}

impl Sum {
    fn add(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        self.crc32c = crc32c::crc32c_append(self.crc32c, chunk);
    }

    /// Checks that the file is what the ledger says.
    fn check(self, file: &UploadFile) -> Result<(), Error> {
        let text = |(bytes, crc32c): (u64, u32)| format!("{bytes} bytes with CRC-32C {crc32c:08x}");
        match file.expected {
            Some(expected) if expected != (self.bytes, self.crc32c) => Err(Error::Damaged {
                path: file.path.clone(),
                expected: text(expected),
                found: text((self.bytes, self.crc32c)),
            }),
            _ => Ok(()),
        }
    }
}

/// Puts a file, replacing what an interrupted upload has left. The object appears only if the file
/// is what was sealed. Returns its length in bytes.
///
/// # Errors
/// [`Error::Read`], [`Error::Damaged`], [`Error::Store`].
pub async fn put_file(store: &Store, file: &UploadFile) -> Result<u64, Error> {
    let mut reading = Reading::open(file).await?;
    let mut sum = Sum::default();
    let first = reading.chunk().await?;
    sum.add(&first);
    let (key, fail) = (store.key(&file.name), || store.error("put", &file.name));
    if first.len() < CHUNK_BYTES {
        sum.check(file)?;
        store.objects.put(&key, first.into()).await.map_err(fail())?;
        return Ok(sum.bytes);
    }
    let upload = store.objects.put_multipart(&key).await.map_err(fail())?;
    let mut writing = WriteMultipart::new_with_chunk_size(upload, CHUNK_BYTES);
    writing.put(first);
    let sent = async {
        loop {
            let chunk = reading.chunk().await?;
            if chunk.is_empty() {
                return sum.check(file);
            }
            sum.add(&chunk);
            writing.wait_for_capacity(MAX_IN_PROGRESS).await.map_err(fail())?;
            writing.put(chunk);
        }
    };
    if let Err(error) = sent.await {
        // Without this, the store keeps the parts until its own rules remove them.
        let _ = writing.abort().await;
        return Err(error);
    }
    writing.finish().await.map_err(fail())?;
    Ok(sum.bytes)
}

/// Puts an object unless it exists. Returns false if it exists.
///
/// # Errors
/// [`Error::Store`].
pub async fn create(store: &Store, name: &str, content: Bytes) -> Result<bool, Error> {
    let key = store.key(name);
    match store.objects.put_opts(&key, content.clone().into(), PutMode::Create.into()).await {
        Ok(_) => Ok(true),
        Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
        // The caller has looked whether it exists.
        Err(object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. }) => {
            store.objects.put(&key, content.into()).await.map_err(store.error("put", name))?;
            Ok(true)
        }
        Err(error) => Err(store.error("put", name)(error)),
    }
}

/// Gets an object; `None` if it does not exist.
///
/// # Errors
/// [`Error::Store`].
pub async fn get(store: &Store, name: &str) -> Result<Option<Bytes>, Error> {
    match store.objects.get(&store.key(name)).await {
        Ok(found) => found.bytes().await.map(Some).map_err(store.error("get", name)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(store.error("get", name)(error)),
    }
}

/// A file that is read in chunks.
struct Reading<'a> {
    file: &'a UploadFile,
    open: File,
}

impl Reading<'_> {
    async fn open(file: &UploadFile) -> Result<Reading<'_>, Error> {
        let open = File::open(&file.path).await.map_err(read_error(file))?;
        Ok(Reading { file, open })
    }

    /// Reads [`CHUNK_BYTES`], or less at the end of the file.
    async fn chunk(&mut self) -> Result<Bytes, Error> {
        let mut bytes = Vec::new();
        let limited = (&mut self.open).take(CHUNK_BYTES as u64);
        { limited }.read_to_end(&mut bytes).await.map_err(read_error(self.file))?;
        Ok(bytes.into())
    }
}

fn read_error(file: &UploadFile) -> impl FnOnce(std::io::Error) -> Error {
    let path = file.path.clone();
    |source| Error::Read { path, source }
}
