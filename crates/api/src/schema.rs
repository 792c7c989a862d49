//! Schemas of the types that can be written in several ways.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};

/// Any one of several forms.
pub(crate) fn one_of(description: &str, forms: impl IntoIterator<Item = RefOr<Schema>>) -> RefOr<Schema> {
    let forms = forms.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item);
    RefOr::T(Schema::OneOf(forms.description(Some(description)).build()))
}

/// Text of a form that a regular expression describes.
pub(crate) fn text(pattern: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
    RefOr::T(Schema::Object(text.pattern(Some(pattern)).build()))
}

/// A number of at least `least`.
pub(crate) fn number(least: f64) -> RefOr<Schema> {
    let number = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Number));
    RefOr::T(Schema::Object(number.minimum(Some(least)).build()))
}

/// A whole number in a range.
pub(crate) fn integer(least: i64, most: i64) -> RefOr<Schema> {
    let integer = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer));
    RefOr::T(Schema::Object(integer.minimum(Some(least)).maximum(Some(most)).build()))
}

/// A list of at least one and at most so many texts.
pub(crate) fn texts(most: usize) -> RefOr<Schema> {
    let items = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
    RefOr::T(Schema::Array(ArrayBuilder::new().items(items).min_items(Some(1)).max_items(Some(most)).build()))
}
