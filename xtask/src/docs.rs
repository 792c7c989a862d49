//! Pages generated from the code: one for each policy, from the header of its file, the table of who may do what, and the
//! schema of the job file.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use policies::{Entry, POLICIES};

use crate::say;

pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    fs::create_dir_all(root.join("docs/policies"))?;
    let pages = POLICIES.iter().map(|entry| (format!("policies/{}.md", entry.name), page(entry)));
    let schema = format!("{:#}\n", server::http::job_schema());
    let others = [
        ("policies/README.md".to_string(), index()),
        ("access.md".to_string(), server::access::markdown()),
        ("job.schema.json".to_string(), schema),
    ];
    let mut stale = Vec::new();
    for (name, text) in pages.chain(others) {
        let path = root.join("docs").join(&name);
        if fs::read_to_string(&path).unwrap_or_default() != text {
            stale.push(name);
            if !check {
                fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
    }
    if check && !stale.is_empty() {
        bail!("not up to date: {}; run `cargo xtask docs`", stale.join(", "));
    }
    say(&format!("{} pages, {} of them new", POLICIES.len() + 3, stale.len()));
    Ok(())
}

fn page(entry: &Entry) -> String {
    let mut text = format!("# {}\n\n{}\n", entry.name, entry.header().trim_end());
    if !entry.parameters.is_empty() {
        text.push_str("\n## Parameters\n\n| key | default | meaning |\n|---|---|---|\n");
        for parameter in entry.parameters {
            let default = if parameter.default.is_empty() { "" } else { &format!("`{}`", parameter.default) };
            let meaning = parameter.help.replace('|', "\\|");
            writeln!(text, "| `{}` | {default} | {meaning} |", parameter.name).expect("a string grows");
        }
    }
    text.push_str("\nGenerated from the header of the policy's file by `cargo xtask docs`.\n");
    text
}

fn index() -> String {
    let mut text = String::from("# Policies\n\n| policy | what it does | paper |\n|---|---|---|\n");
    for entry in POLICIES {
        writeln!(text, "| [{0}]({0}.md) | {1} | {2} |", entry.name, entry.summary, entry.citation)
            .expect("a string grows");
    }
    text.push_str("\nGenerated from the table of policies by `cargo xtask docs`.\n");
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_pages_are_up_to_date() {
        super::run(&crate::root(), true).unwrap();
    }
}
