//! Metadata of a trace in the language of CTF (TSDL).

use miot_trace_events::row::{Column, ColumnType};
use std::fmt::Write as _;

/// Bit of [`EventType::present`]: the event has its time as a field too, because a clock cannot
/// represent it.
pub(super) const BEFORE_1970: u64 = 1 << 63;

/// Type of events.
#[derive(Debug)]
pub(super) struct EventType {
    pub(super) name: String,
    /// One bit per field, in the order of the fields.
    pub(super) present: u64,
}

/// Returns the metadata of a trace. All events have `context`; the type of an event determines
/// which of `fields` it has.
pub(super) fn text(
    uuid: &[u8; 16],
    tracer: &str,
    context: &[&'static Column],
    fields: &[&'static Column],
    types: &[EventType],
) -> String {
    let uuid = format!("{:032x}", u128::from_be_bytes(*uuid));
    let uuid = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]].join("-");
    let [major, minor, patch] =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    let tracer = escaped(tracer);
    let fields_of = |columns: &mut dyn Iterator<Item = &'static Column>| {
        columns.fold(String::new(), |text, column| {
            text + &format!("\t\t{} _{};\n", type_name(column.column_type), column.name)
        })
    };
    let context = fields_of(&mut context.iter().copied());
    let mut text = format!(
        r#"/* CTF 1.8 */

typealias integer {{ size = 8; align = 8; signed = false; }} := uint8_t;
typealias integer {{ size = 16; align = 8; signed = false; }} := uint16_t;
typealias integer {{ size = 32; align = 8; signed = false; }} := uint32_t;
typealias integer {{ size = 64; align = 8; signed = false; }} := uint64_t;
typealias integer {{ size = 64; align = 8; signed = true; }} := int64_t;

trace {{
	major = 1;
	minor = 8;
	uuid = "{uuid}";
	byte_order = le;
	packet.header := struct {{
		uint32_t magic;
		uint8_t uuid[16];
		uint32_t stream_id;
		uint64_t stream_instance_id;
	}};
}};

env {{
	domain = "io";
	tracer_name = "miot";
	tracer_major = {major};
	tracer_minor = {minor};
	tracer_patch = {patch};
	recorded_by = "{tracer}";
}};

clock {{
	name = "trace";
	description = "nanoseconds since 1970, UTC, in the log-server's clock";
	freq = 1000000000;
	offset_s = 0;
	offset = 0;
	absolute = TRUE;
}};

typealias integer {{ size = 64; align = 8; signed = false; map = clock.trace.value; }} := time_t;

stream {{
	id = 0;
	event.header := struct {{
		uint32_t id;
		time_t timestamp;
	}};
	packet.context := struct {{
		time_t timestamp_begin;
		time_t timestamp_end;
		uint64_t content_size;
		uint64_t packet_size;
		uint64_t packet_seq_num;
		uint64_t events_discarded;
	}};
	event.context := struct {{
{context}	}};
}};
"#
    );
    for (number, of) in types.iter().enumerate() {
        let present = fields.iter().enumerate().filter(|(bit, _)| of.present & 1 << bit != 0);
        let mut fields = fields_of(&mut present.map(|(_, column)| *column));
        if of.present & BEFORE_1970 != 0 {
            fields += "\t\tint64_t _time;\n";
        }
        let name = escaped(&of.name);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\nevent {{\n\tid = {number};\n\tname = \"{name}\";\n\tstream_id = 0;\n\tfields := struct {{\n{fields}\t}};\n}};\n"
        );
    }
    text
}

fn type_name(column_type: ColumnType) -> &'static str {
    match column_type {
        ColumnType::Time | ColumnType::Signed => "int64_t",
        ColumnType::Unsigned(16) => "uint16_t",
        ColumnType::Unsigned(32) => "uint32_t",
        ColumnType::Unsigned(_) => "uint64_t",
        ColumnType::Text => "string",
    }
}

/// Escapes text for a string of TSDL.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(if c.is_control() { '?' } else { c });
    }
    out
}
