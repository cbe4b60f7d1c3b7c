//! A record batch as a message of an Arrow IPC stream.
//!
//! `arrow_ipc::writer` compresses all buffers of a message or none. Here a buffer is compressed if all its
//! values are the same, which takes next to no time and half of the bytes, and stands as it is otherwise. Only
//! flat columns are known: numbers, times, text, bytes, and dictionaries of these.

use super::repeated;
use super::{ALIGNMENT, CHECK, CHECK_TAG, CONTINUATION, PREFIX};
use arrow_array::{Array, RecordBatch};
use arrow_buffer::{BooleanBuffer, Buffer};
use arrow_ipc::{
    BodyCompressionBuilder, BodyCompressionMethod, CompressionType, FieldNode, MessageBuilder, MessageHeader,
    MetadataVersion, RecordBatchBuilder,
};
use arrow_schema::{ArrowError, DataType};
use flatbuffers::FlatBufferBuilder;

/// Shorter buffers are not worth a call of the compressor.
const COMPRESSED_FROM: usize = 8 << 10;
/// What stands before a buffer that is not compressed.
const PLAIN: [u8; 8] = (-1i64).to_le_bytes();

/// Encodes batches; keeps what can be used again.
pub(super) struct Encoder {
    flat: FlatBufferBuilder<'static>,
}

/// A buffer of the body.
enum Piece {
    Empty,
    Plain(Buffer),
    /// All values the same: the plain length, compressed.
    Same(u64, Vec<u8>),
}

impl Piece {
    /// Bytes in the body, without the zeros up to the next one.
    fn len(&self) -> usize {
        match self {
            Piece::Empty => 0,
            Piece::Plain(bytes) => 8 + bytes.len(),
            Piece::Same(_, bytes) => 8 + bytes.len(),
        }
    }
}

impl Encoder {
    pub(super) fn new() -> Encoder {
        Encoder { flat: FlatBufferBuilder::new() }
    }

    /// Appends the message of a batch with its checksum; on an error `out` is as it was.
    pub(super) fn encode(&mut self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), ArrowError> {
        let (mut nodes, mut pieces) = (Vec::new(), Vec::new());
        for column in batch.columns() {
            nodes.push(FieldNode::new(column.len() as i64, column.null_count() as i64));
            put_pieces(column.as_ref(), &mut pieces)?;
        }
        let mut at = 0usize;
        let places: Vec<arrow_ipc::Buffer> = pieces
            .iter()
            .map(|piece| {
                let place = arrow_ipc::Buffer::new(at as i64, piece.len() as i64);
                at += piece.len().next_multiple_of(ALIGNMENT);
                place
            })
            .collect();
        self.header(batch.num_rows(), &nodes, &places, at);
        let flat = self.flat.finished_data();
        let meta = (PREFIX + flat.len() + CHECK).next_multiple_of(ALIGNMENT) - PREFIX;
        out.reserve(PREFIX + meta + at);
        out.extend_from_slice(&CONTINUATION);
        out.extend_from_slice(&(meta as u32).to_le_bytes());
        let start = out.len();
        out.extend_from_slice(flat);
        out.resize(start + meta - CHECK, 0);
        let head = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&CHECK_TAG);
        let check = out.len();
        out.extend_from_slice(&[0; 4]);
        for piece in &pieces {
            match piece {
                Piece::Empty => {}
                Piece::Plain(bytes) => {
                    out.extend_from_slice(&PLAIN);
                    out.extend_from_slice(bytes);
                }
                Piece::Same(length, bytes) => {
                    out.extend_from_slice(&length.to_le_bytes());
                    out.extend_from_slice(bytes);
                }
            }
            out.extend_from_slice(&[0; ALIGNMENT][..piece.len().next_multiple_of(ALIGNMENT) - piece.len()]);
        }
        let crc = crc32c::crc32c_append(head, &out[check + 4..]);
        out[check..check + 4].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }

    fn header(&mut self, rows: usize, nodes: &[FieldNode], buffers: &[arrow_ipc::Buffer], body: usize) {
        let flat = &mut self.flat;
        flat.reset();
        let compression = {
            let mut compression = BodyCompressionBuilder::new(flat);
            compression.add_method(BodyCompressionMethod::BUFFER);
            compression.add_codec(CompressionType::ZSTD);
            compression.finish()
        };
        let (buffers, nodes) = (flat.create_vector(buffers), flat.create_vector(nodes));
        let batch = {
            let mut batch = RecordBatchBuilder::new(flat);
            batch.add_length(rows as i64);
            batch.add_nodes(nodes);
            batch.add_buffers(buffers);
            batch.add_compression(compression);
            batch.finish()
        };
        let mut message = MessageBuilder::new(flat);
        message.add_version(MetadataVersion::V5);
        message.add_header_type(MessageHeader::RecordBatch);
        message.add_bodyLength(body as i64);
        message.add_header(batch.as_union_value());
        let message = message.finish();
        flat.finish(message, None);
    }
}

/// The buffers of a column in the order of the format: validity, then values or offsets and bytes.
fn put_pieces(column: &dyn Array, pieces: &mut Vec<Piece>) -> Result<(), ArrowError> {
    let validity = match column.nulls().filter(|n| n.null_count() > 0) {
        Some(nulls) => piece(aligned(nulls.inner()), 1),
        None => Piece::Empty,
    };
    pieces.push(validity);
    let data = column.to_data();
    let key = match data.data_type() {
        DataType::Dictionary(key, _) => key.as_ref(),
        other => other,
    };
    match (key.primitive_width(), data.buffers()) {
        (Some(width), [values, ..]) => {
            let values = values.slice_with_length(data.offset() * width, data.len() * width);
            pieces.push(piece(values, width));
        }
        (None, [offsets, bytes]) if matches!(key, DataType::Utf8 | DataType::Binary) => {
            let offsets = offsets.typed_data::<i32>();
            let offsets = offsets.get(data.offset()..=data.offset() + data.len()).unwrap_or(&[0]);
            let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
            let from_zero: Buffer = offsets.iter().map(|o| o - first).collect();
            pieces.push(piece(from_zero, 4));
            pieces.push(piece(bytes.slice_with_length(first as usize, (last - first) as usize), 1));
        }
        (_, buffers) => {
            let reason = format!("a column of type {key} with {} buffers", buffers.len());
            return Err(ArrowError::NotYetImplemented(reason));
        }
    }
    Ok(())
}

fn piece(bytes: Buffer, width: usize) -> Piece {
    if bytes.is_empty() {
        return Piece::Empty;
    }
    if bytes.len() < COMPRESSED_FROM || bytes[width..] != bytes[..bytes.len() - width] {
        return Piece::Plain(bytes);
    }
    let mut value = [0; 8];
    value.iter_mut().zip(bytes[..width].iter().cycle()).for_each(|(to, from)| *to = *from);
    Piece::Same(bytes.len() as u64, repeated::frame(value, bytes.len()))
}

/// Bits that start at a byte.
fn aligned(bits: &BooleanBuffer) -> Buffer {
    bits.sliced()
}
