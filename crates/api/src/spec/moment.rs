//! A moment as text. TOML has a form of its own for it, which arrives as a map with one odd key.

use std::fmt;

use serde::Deserializer;
use serde::de::{self, MapAccess};

const TOML_KEY: &str = "$__toml_private_datetime";

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_any(Visitor)
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a moment like 2026-11-20T09:00:00Z")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<String>, E> {
        Ok(Some(text.into()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        match map.next_entry::<String, String>()? {
            Some((key, value)) if key == TOML_KEY => Ok(Some(value)),
            _ => Err(de::Error::invalid_type(de::Unexpected::Map, &self)),
        }
    }
}
