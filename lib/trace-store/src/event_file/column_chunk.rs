//! The pages of one column in one row group.

use super::dictionary::Dictionary;
use super::{delta, hybrid};
use crate::repeated_value::RepeatedValue;
use crate::schema::NameKey;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, ArrayRef, StringArray};
use arrow_buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow_schema::DataType;
use bytes::Bytes;
use parquet::basic::{BoundaryOrder, Compression, Encoding, Type, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter as _};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ColumnIndexBuilder, OffsetIndexBuilder};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use std::collections::{HashMap, HashSet};

/// Level of zstd. The encodings already make the columns small, so higher levels cost more than
/// they save.
const LEVEL: i32 = 1;
/// Columns that readers select by value or range. For other columns, statistics of a million mixed
/// rows exclude nothing.
const STATISTICS: [&str; 10] =
    ["time", "duration", "node", "process", "pid", "tid", "file", "result", "stream", "seq"];
/// The column by which rows are ordered. Its pages have statistics too, so that readers find a time
/// range without reading adjacent pages.
const ORDERED: &str = "time";

/// Buffers that all columns share.
pub(super) struct Scratch {
    zstd: zstd::bulk::Compressor<'static>,
    values: Vec<u64>,
    indices: Vec<u16>,
    page: Vec<u8>,
    compressed: Vec<u8>,
}

impl Scratch {
    pub(super) fn new() -> Result<Scratch> {
        let zstd = zstd::bulk::Compressor::new(LEVEL)?;
        Ok(Scratch {
            zstd,
            values: Vec::new(),
            indices: Vec::new(),
            page: Vec::new(),
            compressed: Vec::new(),
        })
    }
}

/// A finished column chunk, as the crate `parquet` appends it to a row group.
pub(super) struct Finished {
    pub(super) bytes: Bytes,
    pub(super) close: ColumnCloseResult,
}

/// The pages of one column in the present row group.
pub(super) struct Chunk {
    column: ColumnDescPtr,
    has_statistics: bool,
    is_ordered: bool,
    repeated: RepeatedValue,
    dictionary: Dictionary,
    names: Names,
    /// Pages until the dictionary is tried again.
    pause: u32,
    /// Pages of the next pause, if the dictionary does not fit again.
    next_pause: u32,
    /// Set with the first page.
    compression: Option<Compression>,
    pages: TrackedWrite<Vec<u8>>,
    page_infos: Vec<PageInfo>,
    has_indices: bool,
    has_deltas: bool,
    nulls: u64,
    uncompressed: usize,
    range: Option<(u64, u64)>,
}

/// Position and content of a page.
struct PageInfo {
    /// Offset in the chunk, bytes.
    offset: usize,
    /// Length, bytes.
    length: usize,
    rows: usize,
    /// Least and greatest value.
    range: Option<(u64, u64)>,
}

/// Maximum distinct names of a row group: an index has two bytes.
const MAX_NAMES: usize = 1 << 16;

/// The distinct texts of a column of names.
#[derive(Default)]
struct Names {
    indices: HashMap<Box<str>, u16>,
    texts: Vec<Box<str>>,
}

impl Names {
    fn index_of(&mut self, name: &str) -> Result<u16> {
        if let Some(index) = self.indices.get(name) {
            return Ok(*index);
        }
        let index = u16::try_from(self.texts.len())
            .map_err(|_| ParquetError::General("more names than a column of events can have".to_owned()))?;
        self.indices.insert(name.into(), index);
        self.texts.push(name.into());
        Ok(index)
    }
}

/// Encoding of the values of a page.
enum PageEncoding {
    Indices,
    Deltas,
    /// The page has no values.
    Empty,
}

impl Chunk {
    pub(super) fn new(column: ColumnDescPtr) -> Chunk {
        let name = column.name();
        Chunk {
            has_statistics: STATISTICS.contains(&name),
            is_ordered: name == ORDERED,
            repeated: RepeatedValue::default(),
            column,
            dictionary: Dictionary::new(),
            names: Names::default(),
            pause: 0,
            next_pause: 1,
            compression: None,
            pages: TrackedWrite::new(Vec::new()),
            page_infos: Vec::new(),
            has_indices: false,
            has_deltas: false,
            nulls: 0,
            uncompressed: 0,
            range: None,
        }
    }

    /// Returns false if these rows have more new names than fit in the dictionary of this row
    /// group. The names of [`PAGE_ROWS`](super::PAGE_ROWS) rows always fit in the dictionary of a
    /// new one.
    pub(super) fn fits(&self, rows: &ArrayRef) -> bool {
        let Some((keys, names)) = keys_and_names(rows) else { return true };
        let free = MAX_NAMES - self.names.texts.len();
        if names.len().min(keys.len()) <= free {
            return true;
        }
        let mut is_used = vec![false; names.len()];
        keys.iter().for_each(|key| is_used[*key as usize] = true);
        let used = names.iter().zip(is_used).filter(|(_, is_used)| *is_used).filter_map(|(name, _)| name);
        let new: HashSet<&str> = used.filter(|name| !self.names.indices.contains_key(*name)).collect();
        new.len() <= free
    }

    /// Appends a page of these rows.
    pub(super) fn add(&mut self, rows: &ArrayRef, scratch: &mut Scratch) -> Result<()> {
        let nulls = rows.nulls().filter(|nulls| nulls.null_count() > 0);
        scratch.page.clear();
        if self.column.max_def_level() > 0 {
            put_levels(&mut scratch.page, nulls, rows.len());
        }
        let mut range = None;
        let repeated = match rows.data_type() {
            DataType::Dictionary(..) => None,
            _ => self.repeated_number(rows, nulls),
        };
        let repeated = repeated.and_then(|value| Some((value, self.dictionary.index_of(value)?)));
        let encoding = match (repeated, rows.data_type()) {
            (Some((value, index)), _) => {
                range = self.has_statistics.then_some((value, value));
                put_repeated(&mut scratch.page, index, self.dictionary.values().len(), rows.len());
                PageEncoding::Indices
            }
            (None, DataType::Dictionary(..)) => self.put_names(rows, scratch)?,
            (None, _) => {
                let values = numbers(rows, nulls, &mut scratch.values)?;
                if self.has_statistics {
                    range = self.range_of(values);
                }
                self.put_numbers(values, &mut scratch.indices, &mut scratch.page)
            }
        };
        self.nulls += nulls.map_or(0, |nulls| nulls.null_count() as u64);
        self.write_page(encoding, rows.len(), range, scratch)
    }

    /// Returns the number in all rows, if there is one.
    fn repeated_number(&mut self, rows: &ArrayRef, nulls: Option<&NullBuffer>) -> Option<u64> {
        if nulls.is_some() {
            return None;
        }
        if let Some(words) = words(rows) {
            return self.repeated.is_in(words, size_of::<u64>()).then(|| words.typed_data::<u64>()[0]);
        }
        let values = rows.as_primitive_opt::<Int32Type>()?.values();
        let is_repeated = self.repeated.is_in(values.inner(), size_of::<i32>());
        is_repeated.then(|| i64::from(values[0]) as u64)
    }

    fn put_names(&mut self, rows: &ArrayRef, scratch: &mut Scratch) -> Result<PageEncoding> {
        let (keys, names) = keys_and_names(rows).ok_or_else(|| unsupported(rows))?;
        if self.repeated.is_in(keys.inner(), size_of::<i32>()) {
            let index = self.names.index_of(names.value(keys[0] as usize))?;
            put_repeated(&mut scratch.page, index, self.names.texts.len(), keys.len());
            return Ok(PageEncoding::Indices);
        }
        let indices = &mut scratch.indices;
        indices.clear();
        let mut known: Vec<Option<u16>> = vec![None; names.len()];
        for key in keys {
            let key = *key as usize;
            let index = match known[key] {
                Some(index) => index,
                None => *known[key].insert(self.names.index_of(names.value(key))?),
            };
            indices.push(index);
        }
        put_indices(&mut scratch.page, indices, self.names.texts.len());
        Ok(PageEncoding::Indices)
    }

    fn put_numbers(&mut self, values: &[u64], indices: &mut Vec<u16>, page: &mut Vec<u8>) -> PageEncoding {
        let Some((first, rest)) = values.split_first() else { return PageEncoding::Empty };
        if *rest == values[..rest.len()]
            && let Some(index) = self.dictionary.index_of(*first)
        {
            put_repeated(page, index, self.dictionary.values().len(), values.len());
            return PageEncoding::Indices;
        }
        if self.pause > 0 {
            self.pause -= 1;
        } else if self.dictionary.index(values, indices) {
            self.next_pause = 1;
            put_indices(page, indices, self.dictionary.values().len());
            return PageEncoding::Indices;
        } else {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(64);
        }
        match self.column.physical_type() {
            Type::INT32 => delta::put::<true>(page, values),
            _ => delta::put::<false>(page, values),
        }
        PageEncoding::Deltas
    }

    fn write_page(
        &mut self,
        page_encoding: PageEncoding,
        rows: usize,
        range: Option<(u64, u64)>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let encoding = match page_encoding {
            PageEncoding::Indices => Encoding::RLE_DICTIONARY,
            PageEncoding::Deltas => Encoding::DELTA_BINARY_PACKED,
            PageEncoding::Empty => Encoding::PLAIN,
        };
        self.has_indices |= matches!(page_encoding, PageEncoding::Indices);
        self.has_deltas |= matches!(page_encoding, PageEncoding::Deltas);
        let page = Page::DataPage {
            buf: self.compressed(&scratch.page, &mut scratch.zstd, &mut scratch.compressed)?,
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let offset = self.pages.bytes_written();
        let written = SerializedPageWriter::new(&mut self.pages)
            .write_page(CompressedPage::new(page, scratch.page.len()))?;
        self.uncompressed += written.uncompressed_size;
        self.page_infos.push(PageInfo { offset, length: self.pages.bytes_written() - offset, rows, range });
        self.range = match (self.range, range) {
            (Some(before), Some(range)) => Some(self.joined(before, range)),
            (before, range) => before.or(range),
        };
        Ok(())
    }

    /// Compresses a page if that is worth it. Pages are already packed and often not compressible:
    /// the first page of a chunk decides for all.
    fn compressed(
        &mut self,
        page: &[u8],
        zstd: &mut zstd::bulk::Compressor<'static>,
        out: &mut Vec<u8>,
    ) -> Result<Bytes> {
        if self.compression == Some(Compression::UNCOMPRESSED) {
            return Ok(Bytes::copy_from_slice(page));
        }
        out.clear();
        out.reserve(zstd::zstd_safe::compress_bound(page.len()));
        zstd.compress_to_buffer(page, out)?;
        if self.compression.is_none() {
            let is_worth_it = page.len() < 64 || out.len() < page.len() / 16 * 15;
            self.compression = Some(if is_worth_it {
                Compression::ZSTD(ZstdLevel::try_new(LEVEL)?)
            } else {
                Compression::UNCOMPRESSED
            });
            if !is_worth_it {
                return Ok(Bytes::copy_from_slice(page));
            }
        }
        Ok(Bytes::copy_from_slice(out))
    }

    /// Finishes the chunk. Rows that are added next belong to the next one.
    pub(super) fn finish(&mut self, scratch: &mut Scratch) -> Result<Finished> {
        let dictionary = self.dictionary_page(scratch)?;
        let compression = self.compression.unwrap_or(Compression::UNCOMPRESSED);
        let data = std::mem::replace(&mut self.pages, TrackedWrite::new(Vec::new())).into_inner()?;
        let head = dictionary.len();
        let bytes = if head == 0 { Bytes::from(data) } else { Bytes::from([dictionary, data].concat()) };

        let rows: usize = self.page_infos.iter().map(|page| page.rows).sum();
        let mut offsets = OffsetIndexBuilder::new();
        for page in &self.page_infos {
            offsets.append_row_count(page.rows as i64);
            offsets.append_offset_and_size((head + page.offset) as i64, page.length as i32);
        }
        let mut encodings = vec![Encoding::RLE];
        if self.has_indices {
            encodings.extend([Encoding::PLAIN, Encoding::RLE_DICTIONARY]);
        }
        if self.has_deltas {
            encodings.push(Encoding::DELTA_BINARY_PACKED);
        }
        if !self.has_indices && !self.has_deltas {
            encodings.push(Encoding::PLAIN);
        }
        let mut metadata = ColumnChunkMetaData::builder(self.column.clone())
            .set_compression(compression)
            .set_encodings(encodings)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(self.uncompressed as i64)
            .set_num_values(rows as i64)
            .set_data_page_offset(head as i64)
            .set_dictionary_page_offset((head > 0).then_some(0));
        if self.has_statistics {
            metadata = metadata.set_statistics(self.statistics());
        }
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: if self.is_ordered { Some(self.column_index()?.build()?) } else { None },
            offset_index: Some(offsets.build()),
        };
        self.clear();
        Ok(Finished { bytes, close })
    }

    fn clear(&mut self) {
        self.dictionary.clear();
        self.names = Names::default();
        self.compression = None;
        self.page_infos.clear();
        (self.has_indices, self.has_deltas) = (false, false);
        (self.nulls, self.uncompressed, self.range) = (0, 0, None);
    }

    fn dictionary_page(&mut self, scratch: &mut Scratch) -> Result<Vec<u8>> {
        if !self.has_indices {
            return Ok(Vec::new());
        }
        scratch.page.clear();
        let count = match self.column.physical_type() {
            Type::BYTE_ARRAY => {
                for text in &self.names.texts {
                    scratch.page.extend_from_slice(&(text.len() as u32).to_le_bytes());
                    scratch.page.extend_from_slice(text.as_bytes());
                }
                self.names.texts.len()
            }
            Type::INT32 => {
                let values = self.dictionary.values().iter();
                scratch.page.extend(values.flat_map(|value| (*value as u32).to_le_bytes()));
                self.dictionary.values().len()
            }
            _ => {
                scratch.page.extend(self.dictionary.values().iter().flat_map(|value| value.to_le_bytes()));
                self.dictionary.values().len()
            }
        };
        let page = Page::DictionaryPage {
            buf: self.compressed(&scratch.page, &mut scratch.zstd, &mut scratch.compressed)?,
            num_values: count as u32,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        let mut out = TrackedWrite::new(Vec::new());
        let written =
            SerializedPageWriter::new(&mut out).write_page(CompressedPage::new(page, scratch.page.len()))?;
        self.uncompressed += written.uncompressed_size;
        out.into_inner()
    }

    fn is_signed(&self) -> bool {
        self.column.sort_order().is_signed()
    }

    fn range_of(&self, values: &[u64]) -> Option<(u64, u64)> {
        let first = *values.first()?;
        Some(if self.is_signed() {
            let range = values.iter().fold((first as i64, first as i64), |(least, greatest), value| {
                (least.min(*value as i64), greatest.max(*value as i64))
            });
            (range.0 as u64, range.1 as u64)
        } else {
            values
                .iter()
                .fold((first, first), |(least, greatest), value| (least.min(*value), greatest.max(*value)))
        })
    }

    fn joined(&self, a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
        if self.is_signed() {
            ((a.0 as i64).min(b.0 as i64) as u64, (a.1 as i64).max(b.1 as i64) as u64)
        } else {
            (a.0.min(b.0), a.1.max(b.1))
        }
    }

    fn statistics(&self) -> Statistics {
        let (least, greatest, nulls) = (self.range.map(|r| r.0), self.range.map(|r| r.1), Some(self.nulls));
        let signed = self.is_signed();
        match self.column.physical_type() {
            Type::INT32 => {
                let (least, greatest) = (least.map(|v| v as i32), greatest.map(|v| v as i32));
                ValueStatistics::new(least, greatest, None, nulls, false)
                    .with_backwards_compatible_min_max(signed)
                    .into()
            }
            Type::BYTE_ARRAY => {
                let text = |text: Option<&Box<str>>| text.map(|text| ByteArray::from(&**text));
                let (least, greatest) = (self.names.texts.iter().min(), self.names.texts.iter().max());
                ValueStatistics::new(text(least), text(greatest), None, nulls, false).into()
            }
            _ => {
                let (least, greatest) = (least.map(|v| v as i64), greatest.map(|v| v as i64));
                ValueStatistics::new(least, greatest, None, nulls, false)
                    .with_backwards_compatible_min_max(signed)
                    .into()
            }
        }
    }

    fn column_index(&self) -> Result<ColumnIndexBuilder> {
        let mut index = ColumnIndexBuilder::new(self.column.physical_type());
        for page in &self.page_infos {
            let (least, greatest) = page.range.unwrap_or_default();
            let bytes = |value: u64| value.to_le_bytes().to_vec();
            index.append(page.range.is_none(), bytes(least), bytes(greatest), 0);
        }
        index.set_boundary_order(BoundaryOrder::ASCENDING);
        Ok(index)
    }
}

/// Returns the keys of a column of names, and the names by key.
fn keys_and_names(rows: &ArrayRef) -> Option<(&ScalarBuffer<i32>, &StringArray)> {
    let array = rows.as_dictionary_opt::<NameKey>()?;
    Some((array.keys().values(), array.values().as_string_opt()?))
}

fn unsupported(rows: &ArrayRef) -> ParquetError {
    ParquetError::General(format!("a column of type {} among events", rows.data_type()))
}

/// Appends the definition levels: which rows are not null.
fn put_levels(page: &mut Vec<u8>, nulls: Option<&NullBuffer>, rows: usize) {
    let start = page.len();
    page.extend_from_slice(&[0; 4]);
    match nulls {
        None => hybrid::put_run(page, 1, rows, 1),
        Some(nulls) if nulls.null_count() == rows => hybrid::put_run(page, 0, rows, 1),
        Some(nulls) => hybrid::put_bits(page, &nulls.inner().sliced(), rows),
    }
    let length = (page.len() - start - 4) as u32;
    page[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Appends `rows` times the same index of a dictionary with `distinct` values.
fn put_repeated(page: &mut Vec<u8>, index: u16, distinct: usize, rows: usize) {
    let width = hybrid::width_of(distinct.saturating_sub(1));
    page.push(width as u8);
    hybrid::put_run(page, index, rows, width);
}

fn put_indices(page: &mut Vec<u8>, indices: &[u16], distinct: usize) {
    let width = hybrid::width_of(distinct.saturating_sub(1));
    page.push(width as u8);
    hybrid::put(page, indices, width);
}

/// Returns the numbers of the rows that are not null, as 64 bits.
fn numbers<'a>(rows: &'a ArrayRef, nulls: Option<&NullBuffer>, wide: &'a mut Vec<u64>) -> Result<&'a [u64]> {
    if let Some(words) = words(rows).map(Buffer::typed_data) {
        return Ok(match nulls {
            None => words,
            Some(nulls) => only_valid(nulls, wide, |row| words[row]),
        });
    }
    let values = rows.as_primitive_opt::<Int32Type>().ok_or_else(|| unsupported(rows))?.values();
    Ok(match nulls {
        None => widen(values, wide),
        Some(nulls) => only_valid(nulls, wide, |row| i64::from(values[row]) as u64),
    })
}

fn words(rows: &ArrayRef) -> Option<&Buffer> {
    Some(match rows.as_primitive_opt::<Int64Type>() {
        Some(array) => array.values().inner(),
        None => rows.as_primitive_opt::<TimestampNanosecondType>()?.values().inner(),
    })
}

fn widen<'a>(values: &[i32], wide: &'a mut Vec<u64>) -> &'a [u64] {
    wide.clear();
    wide.extend(values.iter().map(|value| i64::from(*value) as u64));
    wide
}

fn only_valid<'a>(nulls: &NullBuffer, wide: &'a mut Vec<u64>, value: impl Fn(usize) -> u64) -> &'a [u64] {
    wide.clear();
    wide.extend(nulls.valid_indices().map(value));
    wide
}
