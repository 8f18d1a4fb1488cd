//! Writes protobuf messages: varints, fixed numbers and fields with a length.

/// Messages, one after the other or nested, as bytes.
#[derive(Clone, Debug, Default)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Without a field; nothing is allocated until it holds more bytes than this.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// What was written.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets what was written, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Gives memory back that it does not need.
    pub fn shrunk(mut self) -> Self {
        self.bytes.shrink_to_fit();
        self
    }

    /// The fields of another message.
    pub fn append(&mut self, fields: &Self) {
        self.bytes.extend_from_slice(&fields.bytes);
    }

    /// A field of an unsigned number, an enumeration or a truth value.
    pub fn uint(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    /// A field of a signed number (`int32` or `int64`).
    pub fn int(&mut self, field: u32, value: i64) {
        self.uint(field, value as u64);
    }

    /// A field of a `double`.
    pub fn double(&mut self, field: u32, value: f64) {
        self.key(field, 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A field of a `float`.
    pub fn float(&mut self, field: u32, value: f32) {
        self.key(field, 5);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A field of text.
    pub fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    /// A field of bytes.
    pub fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A packed field of `double`s.
    pub fn doubles(&mut self, field: u32, values: &[f64]) {
        self.key(field, 2);
        self.varint(8 * values.len() as u64);
        values.iter().for_each(|value| self.bytes.extend_from_slice(&value.to_le_bytes()));
    }

    /// A field of a message, whose fields `write` adds.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        self.key(field, 2);
        let at = self.bytes.len();
        self.bytes.push(0);
        write(self);
        let length = self.bytes.len() - at - 1;
        if length < 0x80 {
            self.bytes[at] = length as u8;
        } else {
            self.make_room(at, length);
        }
    }

    /// The length of a long message, which moves to make room for it.
    fn make_room(&mut self, at: usize, mut length: usize) {
        let end = self.bytes.len();
        let more = (usize::BITS - length.leading_zeros()).div_ceil(7) as usize - 1;
        self.bytes.resize(end + more, 0);
        self.bytes.copy_within(at + 1..end, at + 1 + more);
        for (i, byte) in self.bytes[at..=at + more].iter_mut().enumerate() {
            *byte = (length & 0x7f) as u8 | if i < more { 0x80 } else { 0 };
            length >>= 7;
        }
    }

    fn key(&mut self, field: u32, wire_type: u64) {
        self.varint(u64::from(field) << 3 | wire_type);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_are_read_back() {
        let shifted = (0..64).flat_map(|bits| {
            let power = 1_u64 << bits;
            [power - 1, power, power | 0x5555_5555_5555_5555 & (power - 1)]
        });
        for value in shifted.chain([u64::MAX]) {
            let mut message = Message::default();
            message.varint(value);
            let bytes = message.as_bytes();
            assert_eq!(bytes.len(), (64 - value.leading_zeros()).div_ceil(7).max(1) as usize, "{value:#x}");
            let (last, others) = bytes.split_last().unwrap();
            assert!(*last < 0x80 && others.iter().all(|byte| *byte >= 0x80), "{value:#x}: {bytes:x?}");
            let read = bytes.iter().rev().fold(0, |read, byte| read << 7 | u64::from(byte & 0x7f));
            assert_eq!(read, value, "{bytes:x?}");
        }
    }

    /// Bytes from the encoding's own description: 150 in field 1 is 08 96 01, "testing" in field 2 is 12 07 and the text.
    #[test]
    fn fields_have_the_documented_bytes() {
        let mut message = Message::default();
        message.uint(1, 150);
        message.text(2, "testing");
        assert_eq!(message.as_bytes(), b"\x08\x96\x01\x12\x07testing");
        message.clear();
        message.int(1, -1);
        assert_eq!(message.as_bytes(), b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        message.clear();
        message.double(3, 1.0);
        message.float(4, -2.0);
        assert_eq!(message.as_bytes(), b"\x19\0\0\0\0\0\0\xf0\x3f\x25\0\0\0\xc0");
    }

    #[test]
    fn a_nested_message_has_its_length_before_it() {
        let mut message = Message::default();
        message.message(1, |inner| (0..200).for_each(|_| inner.uint(1, 1)));
        // 400 is 0x190: seven bits at a time.
        assert_eq!(message.as_bytes()[..5], [0x0a, 0x90, 0x03, 0x08, 0x01]);
        assert_eq!(message.as_bytes().len(), 3 + 400);
        message.clear();
        message.message(1, |inner| inner.message(2, |inner| inner.uint(3, 4)));
        assert_eq!(message.as_bytes(), [0x0a, 0x04, 0x12, 0x02, 0x18, 0x04]);
    }
}
