//! The job file as a JSON Schema, for editors: the part of the OpenAPI document that describes it.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

const COMPONENTS: &str = "#/components/schemas/";

/// What a job file may say.
pub fn job_schema() -> Value {
    let document = serde_json::to_value(super::document()).expect("a document is made of words and numbers");
    let schemas = document["components"]["schemas"].as_object().expect("the document has schemas");
    let mut reached = BTreeSet::new();
    let mut open = vec!["JobRequest".to_string()];
    while let Some(name) = open.pop() {
        if reached.insert(name.clone()) {
            references(&schemas[&name], &mut open);
        }
    }
    let definitions: Map<String, Value> =
        reached.into_iter().map(|name| (name.clone(), moved(schemas[&name].clone()))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job for Moira",
        "$ref": "#/$defs/JobRequest",
        "$defs": definitions,
    })
}

/// The names of the schemas that one uses.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix(COMPONENTS));
            found.extend(name.map(Into::into));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// The same with references to where the definitions of a JSON Schema are.
fn moved(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(key, value)| match value.as_str().and_then(|text| text.strip_prefix(COMPONENTS)) {
                    Some(name) if key == "$ref" => (key, format!("#/$defs/{name}").into()),
                    _ => (key, moved(value)),
                })
                .collect(),
        ),
        Value::Array(values) => values.into_iter().map(moved).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use api::{Format, JobRequest};
    use regex_automata::nfa::thompson::pikevm::PikeVM;

    use super::*;

    /// What is wrong with a value by a schema, as far as our schemas go.
    struct Judge {
        root: Value,
    }

    impl Judge {
        fn accepts(&self, schema: &Value, value: &Value) -> Result<(), String> {
            let Some(schema) = schema.as_object() else { return Ok(()) };
            for (key, expected) in schema {
                self.rule(schema, key, expected, value).map_err(|why| format!("{value}: {why}"))?;
            }
            Ok(())
        }

        fn rule(&self, schema: &Map<String, Value>, key: &str, expected: &Value, value: &Value) -> Result<(), String> {
            let refuse = |holds: bool| if holds { Ok(()) } else { Err(format!("expected {key} {expected}")) };
            let number = || expected.as_f64().expect("a number");
            match key {
                "$ref" => {
                    let path = expected.as_str().and_then(|path| path.strip_prefix('#')).expect("a reference");
                    self.accepts(self.root.pointer(path).expect("what is referred to"), value)
                }
                "type" => {
                    let any: Vec<&str> = match expected {
                        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
                        one => one.as_str().into_iter().collect(),
                    };
                    refuse(any.into_iter().any(|kind| is_of(kind, value)))
                }
                "oneOf" => {
                    let forms = expected.as_array().expect("forms");
                    let fitting = forms.iter().filter(|form| self.accepts(form, value).is_ok()).count();
                    refuse(fitting == 1)
                }
                "minimum" => refuse(value.as_f64().is_none_or(|value| value >= number())),
                "maximum" => refuse(value.as_f64().is_none_or(|value| value <= number())),
                "minLength" => refuse(value.as_str().is_none_or(|text| text.chars().count() as f64 >= number())),
                "maxLength" => refuse(value.as_str().is_none_or(|text| text.chars().count() as f64 <= number())),
                "minItems" => refuse(value.as_array().is_none_or(|items| items.len() as f64 >= number())),
                "maxItems" => refuse(value.as_array().is_none_or(|items| items.len() as f64 <= number())),
                "pattern" => {
                    let pattern = PikeVM::new(expected.as_str().expect("a pattern")).expect("a pattern");
                    let matches = |text: &str| pattern.is_match(&mut pattern.create_cache(), text);
                    refuse(value.as_str().is_none_or(matches))
                }
                "enum" => refuse(expected.as_array().expect("words").contains(value)),
                "items" => value.as_array().into_iter().flatten().try_for_each(|item| self.accepts(expected, item)),
                "required" => {
                    let has = |name: &Value| value.get(name.as_str().unwrap_or_default()).is_some();
                    refuse(!value.is_object() || expected.as_array().expect("names").iter().all(has))
                }
                "properties" => {
                    expected.as_object().expect("properties").iter().try_for_each(|(name, schema)| {
                        value.get(name).map_or(Ok(()), |value| self.accepts(schema, value))
                    })
                }
                "additionalProperties" => {
                    let known = |name: &String| schema.get("properties").is_some_and(|known| known.get(name).is_some());
                    let others = value.as_object().into_iter().flatten().filter(|(name, _)| !known(name));
                    match expected {
                        Value::Bool(false) => refuse(others.count() == 0),
                        other => others.into_iter().try_for_each(|(_, value)| self.accepts(other, value)),
                    }
                }
                "description" | "title" | "format" | "default" | "$defs" | "$schema" | "propertyNames" => Ok(()),
                other => panic!("this judge does not know {other}"),
            }
        }
    }

    fn is_of(kind: &str, value: &Value) -> bool {
        match kind {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("there is no type {other}"),
        }
    }

    fn by_schema(value: &Value) -> Result<(), String> {
        let schema = job_schema();
        let judge = Judge { root: schema.clone() };
        judge.accepts(&schema, value)
    }

    /// Whether the server takes it, as far as it looks at the job alone.
    fn by_server(value: &Value) -> Result<(), String> {
        let job = JobRequest::parse(&value.to_string(), Format::Json).map_err(|problem| problem.to_string())?;
        job.check().map_err(|faults| format!("{faults:?}"))
    }

    /// The blocks of code on the page of the job file, as JSON.
    fn examples() -> Vec<Value> {
        let page = include_str!("../../../../docs/guides/job-file.md");
        let mut found = Vec::new();
        for block in page.split("```").skip(1).step_by(2) {
            let (language, text) = block.split_once('\n').expect("a block has lines");
            let value = match language {
                "yaml" => api::read(text, Format::Yaml),
                "toml" => api::read(text, Format::Toml),
                "json" => api::read(text, Format::Json),
                other => panic!("no example is written in {other}"),
            };
            found.push(value.unwrap_or_else(|problem| panic!("{problem}:\n{text}")));
        }
        found
    }

    #[test]
    fn the_examples_of_the_job_file_are_taken_by_schema_and_server() {
        let examples = examples();
        assert!(examples.len() >= 5);
        for example in examples {
            assert_eq!((by_schema(&example), by_server(&example)), (Ok(()), Ok(())), "{example}");
        }
    }

    #[test]
    fn whatever_way_something_is_written_schema_and_server_agree_on_it() {
        let ways = [
            ("command", json!(["a", ["sleep", 60], ["sleep", "60"], [], [true], 7])),
            ("workers", json!([1, "4", "1..8", {"max": 8}, {"min": 1, "max": 8, "preferred": 4}, 0, "many", -3, 1.5])),
            (
                "array",
                json!(["0-99", "1-10", "5", "0-99:2", "10-19%10", "0-99:2%100", {"first": 1, "last": 2}, "a-b", 7]),
            ),
            ("depends_on", json!([[7], ["8_3"], ["x"], 7])),
            ("priority", json!([-1000, 1000, 1001, "high"])),
            ("weight", json!([0.001, 1000, 0, "x"])),
            ("hold", json!([true, "yes"])),
            (
                "notify",
                json!([
                    [],
                    [{"command": "a"}, {"url": "https://a.org/", "events": ["end", "failure"]}],
                    [{"command": ["a", 7], "events": ["done"]}],
                    [{"url": "mailto:ann"}],
                    [{"command": "a", "when": "end"}],
                    {"command": "a"}
                ]),
            ),
            ("nonsense", json!([1])),
        ];
        let durations = json!([
            90,
            1.5,
            "90",
            "90s",
            "1h30m",
            "2d",
            "1w2d",
            "500ms",
            "1.5h",
            "90min",
            "10:00",
            "1:30:00",
            "1-12",
            "1-12:00:00",
            "1-12:00",
            "",
            "soon",
            "5 apples",
            -1,
            "h"
        ]);
        let sizes = json!([0, 1048576, "64Gi", "16GB", "1.5TiB", "512", "2g", "10 MB", "5mb", "1P", "lots", "5m", -1]);
        let gpus = json!([0, 1, 8, 0.5, "2", "0.5", "a100:2", "gpu:a100:16", "gpu:4", "rtx-4090:1", "a100:", "x", -1]);
        let nested = [
            ("limits", "max_runtime", durations),
            ("resources", "memory", sizes),
            ("resources", "gpus", gpus),
            ("resources", "gpu", json!([1])),
        ];
        let top = ways.iter().flat_map(|(field, values)| {
            values.as_array().unwrap().iter().map(|value| {
                let mut job = json!({ "command": "a" });
                job[*field] = value.clone();
                job
            })
        });
        let below = nested.iter().flat_map(|(table, field, values)| {
            let value = |value: &Value| json!({ "command": "a", *table: { *field: value } });
            values.as_array().unwrap().iter().map(value).collect::<Vec<_>>()
        });
        for job in top.chain(below) {
            let (schema, server) = (by_schema(&job), by_server(&job));
            assert_eq!(schema.is_ok(), server.is_ok(), "{job}: schema {schema:?}, server {server:?}");
        }
    }
}
