//! Text from outside, made harmless where it goes: between tags, into a script, into a line of CSV.

use std::fmt::Write;

/// For text between tags and for attributes in double quotes.
pub(crate) fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            character => escaped.push(character),
        }
    }
    escaped
}

/// JSON that may stand inside a script element: nothing in it can end the element or begin a comment. The characters
/// replaced occur in JSON inside strings only, so it means the same.
pub(crate) fn json_in_script(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write!(escaped, "\\u{:04x}", character as u32).expect("a string takes whatever is written to it");
            }
            character => escaped.push(character),
        }
    }
    escaped
}

/// Adds one line, fields quoted as in RFC 4180.
pub fn csv_line<S: AsRef<str>>(text: &mut String, fields: impl IntoIterator<Item = S>) {
    const WRITTEN: &str = "memory takes whatever is written to it";
    let mut line = csv::WriterBuilder::new().buffer_capacity(512).from_writer(Vec::new());
    fields.into_iter().for_each(|field| line.write_field(field.as_ref()).expect(WRITTEN));
    line.write_record(None::<&[u8]>).expect(WRITTEN);
    let line = line.into_inner().expect(WRITTEN);
    text.push_str(str::from_utf8(&line).expect("quotes around text leave it text"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_from_outside_becomes_text() {
        assert_eq!(html("<b a=\"1\">&'"), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;");
    }

    #[test]
    fn no_string_can_end_a_script() {
        let json = serde_json::to_string("</script><!--\u{2028}").unwrap();
        let safe = json_in_script(&json);
        assert!(!safe.contains(['<', '>', '\u{2028}']), "{safe}");
        assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), "</script><!--\u{2028}");
    }

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        let mut text = String::new();
        csv_line(&mut text, ["a", "b, c", "say \"d\"", ""]);
        assert_eq!(text, "a,\"b, c\",\"say \"\"d\"\"\",\n");
    }
}
