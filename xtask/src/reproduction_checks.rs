//! The tables of `docs/reproduction.md` again: they must not change by a digit, unless that is meant and the page says so.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sim::reproduce::Paper;

use crate::data_checks::Checks;
use crate::say;

pub(crate) fn run(root: &Path, data: &Path, checks: &mut Checks) -> Result<()> {
    let path = root.join("docs/reproduction.md");
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    for paper in [Paper::Sia, Paper::Pollux] {
        for experiment in paper.experiments(data)? {
            let found = experiment.run()?.table();
            let different = differences(&page, &found);
            different.iter().for_each(|line| say(&format!("     not on the page: {line}")));
            let all = found.trim_end().lines().count();
            let same = (all - different.len()) as f64;
            checks.near(&format!("{}: lines as on the page", experiment.title), same, all as f64, 0.0);
        }
    }
    Ok(())
}

/// Lines of a table that do not stand on the page below its title.
fn differences<'a>(page: &str, table: &'a str) -> Vec<&'a str> {
    let title = table.lines().next().unwrap_or_default();
    let below = page.lines().skip_while(|line| *line != title);
    let mut below =
        below.enumerate().take_while(|(index, line)| *index == 0 || !line.starts_with("### ")).map(|(_, line)| line);
    table.trim_end().lines().filter(|line| below.next() != Some(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digit_that_changed_is_found_below_its_own_title() {
        let page = "# All\n\n### One\n\n| mean | 1.5 |\n| p99 | 2.0 |\n\n### Two\n\n| mean | 1.6 |\n| p99 | 2.0 |\n";
        assert_eq!(differences(page, "### Two\n\n| mean | 1.6 |\n| p99 | 2.0 |\n\n"), [] as [&str; 0]);
        assert_eq!(differences(page, "### One\n\n| mean | 1.6 |\n| p99 | 2.0 |\n\n"), ["| mean | 1.6 |"]);
        assert_eq!(differences(page, "### Three\n\n"), ["### Three"]);
        assert_eq!(differences(page, "### One\n\n| mean | 1.5 |\n| p99 | 2.0 |\n| worst | 9 |\n"), ["| worst | 9 |"]);
    }
}
