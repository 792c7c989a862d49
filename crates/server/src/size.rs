//! How much room something takes where it is written down.

use std::io;

use serde::Serialize;

/// How many bytes it has as JSON.
pub(crate) fn size_of(value: &impl Serialize) -> u64 {
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value).expect("it is written to the journal in the same way");
    counter.0
}

struct Counter(u64);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_that_of_what_would_be_written() {
        let value = serde_json::json!({"env": {"KEY": "ü\"".repeat(1000)}, "n": [1, 2.5, null]});
        assert_eq!(size_of(&value), value.to_string().len() as u64);
    }
}
