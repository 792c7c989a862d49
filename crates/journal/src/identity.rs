//! Which journal this is: 128 random bits, drawn when it is made. Whatever belongs to the journal can name it by them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Identity(pub(crate) [u8; 16]);

/// A text that is not 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an identity of 32 hexadecimal digits, found `{0}`")]
pub struct NotAnIdentity(String);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Identity {
    type Err = NotAnIdentity;

    fn from_str(text: &str) -> Result<Identity, NotAnIdentity> {
        let wrong = || NotAnIdentity(text.to_string());
        // A sign would be taken for part of a number.
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        u128::from_str_radix(text, 16).map(|bits| Identity(bits.to_be_bytes())).map_err(|_| wrong())
    }
}

impl TryFrom<String> for Identity {
    type Error = NotAnIdentity;

    fn try_from(text: String) -> Result<Identity, NotAnIdentity> {
        text.parse()
    }
}

impl From<Identity> for String {
    fn from(identity: Identity) -> String {
        identity.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_as_it_is_written() {
        let text = "00ff00112233445566778899aabbccdd";
        assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        for wrong in ["", "00ff", "+0ff00112233445566778899aabbccdd", "g0ff00112233445566778899aabbccdd"] {
            assert!(wrong.parse::<Identity>().is_err(), "{wrong}");
        }
    }
}
