//! Schemas of the types that can be written in several ways.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};

/// Any one of several forms.
pub(crate) fn one_of(description: &str, forms: impl IntoIterator<Item = RefOr<Schema>>) -> RefOr<Schema> {
    let forms = forms.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item);
    RefOr::T(Schema::OneOf(forms.description(Some(description)).build()))
}

/// Text of a form that a regular expression describes; it is never empty.
pub(crate) fn text(pattern: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
    RefOr::T(Schema::Object(text.min_length(Some(1)).pattern(Some(pattern)).build()))
}

/// A number in a range.
pub(crate) fn number(least: f64, most: f64) -> RefOr<Schema> {
    let number = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Number));
    RefOr::T(Schema::Object(number.minimum(Some(least)).maximum(Some(most)).build()))
}

/// A whole number in a range.
pub(crate) fn integer(least: i64, most: i64) -> RefOr<Schema> {
    let integer = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer));
    RefOr::T(Schema::Object(integer.minimum(Some(least)).maximum(Some(most)).build()))
}

/// A list of at least one and at most so many words, which may be whole numbers.
pub(crate) fn words(most: usize) -> RefOr<Schema> {
    let types = SchemaType::Array(vec![Type::String, Type::Integer]);
    let items = ObjectBuilder::new().schema_type(types);
    RefOr::T(Schema::Array(ArrayBuilder::new().items(items).min_items(Some(1)).max_items(Some(most)).build()))
}
