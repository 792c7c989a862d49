//! Rules of the house that no compiler checks: who may know whom, and what pure crates never name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::say;

/// Each crate and those of ours it may use; every line uses only lines above it.
const MAY_USE: [(&str, &[&str]); 18] = [
    ("cluster", &[]),
    ("perf", &["cluster"]),
    ("solver", &[]),
    ("plan", &["cluster", "perf"]),
    ("policies", &["cluster", "perf", "plan", "solver"]),
    ("engine", &["cluster", "perf", "plan"]),
    ("world", &["cluster", "perf", "plan", "engine"]),
    ("report", &["cluster", "perf", "plan", "engine"]),
    ("page", &["cluster", "plan", "report"]),
    ("trace", &["cluster", "perf"]),
    ("sim", &["cluster", "perf", "plan", "policies", "engine", "world", "report", "trace"]),
    ("disk", &[]),
    ("journal", &["disk"]),
    ("executors", &["cluster", "perf", "disk"]),
    ("api", &["cluster", "perf"]),
    ("server", &["cluster", "perf", "plan", "policies", "engine", "disk", "journal", "executors", "api"]),
    (
        "cli",
        &[
            "cluster",
            "perf",
            "plan",
            "policies",
            "engine",
            "solver",
            "world",
            "report",
            "page",
            "trace",
            "sim",
            "disk",
            "journal",
            "executors",
            "api",
            "server",
        ],
    ),
    ("xtask", &["cluster", "perf", "policies", "engine", "world", "report", "trace", "sim", "solver", "server"]),
];

const PURE: [&str; 9] = ["cluster", "perf", "solver", "plan", "policies", "engine", "world", "report", "page"];

/// What has no place in a pure crate: clocks, IO, threads, maps whose order is not fixed.
const IMPURE: [&str; 8] =
    ["std::time", "std::fs", "std::io", "std::net", "std::thread", "std::env", "HashMap", "HashSet"];

pub(crate) fn run(root: &Path) -> Result<()> {
    let mut faults = dependency_faults(root)?;
    faults.extend(purity_faults(root)?);
    faults.extend(policy_faults(root)?);
    if !faults.is_empty() {
        bail!("not tidy:\n{}", faults.join("\n"));
    }
    say("tidy");
    Ok(())
}

fn dependency_faults(root: &Path) -> Result<Vec<String>> {
    let ours: Vec<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    let mut faults = Vec::new();
    for (name, allowed) in MAY_USE {
        let path = if name == "xtask" { root.join(name) } else { root.join("crates").join(name) };
        let manifest: toml::Table = read(&path.join("Cargo.toml"))?.parse().context("a manifest is TOML")?;
        let uses = manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
        let unlawful = uses.filter(|used| ours.contains(&used.as_str()) && !allowed.contains(&used.as_str()));
        faults.extend(unlawful.map(|used| format!("crates/{name} may not use {used}")));
    }
    let listed = fs::read_dir(root.join("crates"))?.filter_map(Result::ok).map(|entry| entry.file_name());
    let unlisted = listed.filter(|name| !ours.contains(&name.to_string_lossy().as_ref()));
    faults.extend(unlisted.map(|name| format!("crates/{} is not in the table of who may use whom", name.display())));
    Ok(faults)
}

fn purity_faults(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for name in PURE {
        for path in sources(&root.join("crates").join(name).join("src"))? {
            for (number, line) in read(&path)?.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let named = IMPURE.iter().filter(|word| code.contains(**word));
                let place = path.strip_prefix(root).unwrap_or(&path).display();
                faults.extend(named.map(|word| format!("{place}:{}: a pure crate names {word}", number + 1)));
            }
        }
    }
    Ok(faults)
}

/// Every policy has a page, and no page is left of one that is gone.
fn policy_faults(root: &Path) -> Result<Vec<String>> {
    let pages = root.join("docs/policies");
    let known: Vec<String> = policies::POLICIES.iter().map(|entry| format!("{}.md", entry.name)).collect();
    let missing = known.iter().filter(|page| !pages.join(page).exists());
    let mut faults: Vec<String> = missing.map(|page| format!("docs/policies/{page} is missing")).collect();
    for entry in fs::read_dir(&pages).context("docs/policies")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "README.md" && !known.contains(&name) {
            faults.push(format!("docs/policies/{name} belongs to no policy"));
        }
    }
    Ok(faults)
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        run(&crate::root()).unwrap();
    }

    #[test]
    fn the_table_uses_only_lines_above() {
        for (index, (name, allowed)) in MAY_USE.iter().enumerate() {
            let above: Vec<&str> = MAY_USE[..index].iter().map(|(name, _)| *name).collect();
            assert!(allowed.iter().all(|used| above.contains(used)), "{name}");
        }
    }
}
