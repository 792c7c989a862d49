//! The umask of a job's files, in octal digits as `umask` prints it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema;

/// Which rights new files do not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Umask(u32);

impl Umask {
    /// Only the bits that mean anything in a umask count.
    pub fn new(bits: u32) -> Umask {
        Umask(bits & 0o777)
    }

    pub fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Umask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl FromStr for Umask {
    type Err = String;

    fn from_str(text: &str) -> Result<Umask, String> {
        let is_octal = (1..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let bits = u32::from_str_radix(text, 8).ok().filter(|bits| is_octal && *bits <= 0o777);
        bits.map(Umask).ok_or_else(|| format!("expected octal digits up to 0777, like \"0022\", found `{text}`"))
    }
}

impl Serialize for Umask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Only from text: in a file, the number 0022 may mean 22 or 18, depending on its format.
impl<'de> Deserialize<'de> for Umask {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Umask, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Umask;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("octal digits in quotes, like \"0022\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Umask, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl PartialSchema for Umask {
    fn schema() -> RefOr<Schema> {
        schema::text("^0?[0-7]{1,3}$")
    }
}

impl ToSchema for Umask {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_umask_is_read_and_written_in_octal_digits() {
        let umask: Umask = serde_json::from_str("\"027\"").unwrap();
        assert_eq!((umask.bits(), serde_json::to_string(&umask).unwrap()), (0o027, "\"0027\"".into()));
    }

    #[test]
    fn a_umask_that_could_mean_two_things_is_refused() {
        for text in ["22", "\"\"", "\"0089\"", "\"1777\"", "\"00022\"", "\"+022\"", "null"] {
            let refused = serde_json::from_str::<Umask>(text).unwrap_err().to_string();
            assert!(refused.contains("octal digits"), "{text}: {refused}");
        }
    }
}
