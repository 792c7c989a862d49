//! What every page is set in: head, style, scripts, the command that reproduces it, licences. Knows nothing of charts.

use std::fmt::Write;

use serde::Serialize;

use crate::text::{html as escape, json_in_script};

const D3: &str = include_str!("../assets/vendor/d3-7.9.2/d3.min.js");
const D3_LICENCE: &str = include_str!("../assets/vendor/d3-7.9.2/LICENSE");
const PLOT: &str = include_str!("../assets/vendor/plot-0.6.17/plot.umd.min.js");
const PLOT_LICENCE: &str = include_str!("../assets/vendor/plot-0.6.17/LICENSE");
const STYLE: &str = include_str!("../assets/page.css");
const SHARED: &str = include_str!("../assets/charts.js");

/// The browser itself sees to it that nothing is loaded from anywhere.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:";

pub(crate) struct Frame<'a> {
    /// Escaped.
    pub(crate) title: &'a str,
    /// What reproduces the page.
    pub(crate) command: &'a str,
    pub(crate) version: &'a str,
}

impl Frame<'_> {
    /// A page whose script draws its charts from the data; `body` adds everything from the header on.
    pub(crate) fn page(&self, data: &impl Serialize, script: &str, body: impl FnOnce(&mut String)) -> String {
        let data = serde_json::to_string(data).expect("numbers and names can be written as JSON");
        let mut page = String::with_capacity(data.len() + PLOT.len() + D3.len() + 100_000);
        self.head(&mut page);
        body(&mut page);
        self.end(&mut page);
        add_script(&mut page, "application/json", Some("data"), &json_in_script(&data));
        for script in [D3, PLOT, SHARED, script] {
            add_script(&mut page, "text/javascript", None, script);
        }
        page.push_str("</body>\n</html>\n");
        page
    }

    fn head(&self, page: &mut String) {
        add(
            page,
            format_args!(
                "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
                 <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
                 <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
                 <meta name=\"color-scheme\" content=\"light dark\">\n\
                 <title>Moira: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
                self.title
            ),
        );
    }

    fn end(&self, page: &mut String) {
        add(
            page,
            format_args!(
                "<section id=\"reproduce\">\n<h2>Reproduce this page</h2>\n<pre tabindex=\"0\" \
                 aria-label=\"Command\"><code>{}</code></pre>\n<button type=\"button\" id=\"copy\">Copy the \
                 command</button> <span id=\"copied\" role=\"status\"></span>\n<p class=\"note\">Moira {}. The same \
                 command gives the same page, byte for byte, on any machine.</p>\n</section>\n</main>\n<footer>\n\
                 <details><summary>Licences of what is embedded here</summary>\n<p>Charts by Observable Plot 0.6.17 \
                 on D3 7.9.2.</p>\n<pre tabindex=\"0\" aria-label=\"Licence of Observable Plot\">{}</pre>\n\
                 <pre tabindex=\"0\" aria-label=\"Licence of D3\">{}</pre>\n</details>\n</footer>\n",
                escape(self.command),
                escape(self.version),
                escape(PLOT_LICENCE),
                escape(D3_LICENCE)
            ),
        );
    }
}

/// What the page is about and what comes of it, all of it escaped; from here on to the end is its main part.
pub(crate) fn beginning(page: &mut String, title: &str, about: &str, verdict: &str) {
    add(
        page,
        format_args!(
            "<header>\n<div class=\"bar\"><span class=\"brand\">Moira</span>\
             <button type=\"button\" id=\"theme\">Theme: as the system</button></div>\n\
             <h1>{title}</h1>\n<p class=\"compared\">{about}</p>\n<p class=\"verdict\">{verdict}</p>\n</header>\n<main>\n"
        ),
    );
}

pub(crate) fn add(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a string takes whatever is written to it");
}

fn add_script(page: &mut String, kind: &str, id: Option<&str>, content: &str) {
    let id = id.map(|id| format!(" id=\"{id}\"")).unwrap_or_default();
    add(page, format_args!("<script type=\"{kind}\"{id}>"));
    page.push_str(content);
    page.push_str("</script>\n");
}
