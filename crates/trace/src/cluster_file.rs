//! Clusters by name, in short, or from a TOML file.

use std::path::Path;

use cluster::{Cluster, ClusterDraft, QueueTree};

use crate::config_file::{parse_toml, read_text};
use crate::error::{Error, shown, suggestion};
use crate::readers::read_openb_nodes_with_lines;

/// Names that [`load_cluster`] knows, with what they stand for.
pub const CLUSTERS: [(&str, &str); 6] = [
    ("demo", "64 GPUs of three kinds in three racks, shared by three tenants"),
    ("small", "4 nodes of 4 v100"),
    ("homogeneous-64", "16 nodes of 4 t4"),
    ("sia-hetero-64", "6 nodes of 4 t4, 2 of 8 a100 and 3 of 8 rtx2080ti, as in the paper of Sia"),
    ("pollux-homo-64", "16 nodes of 4 t4, as in the paper of Pollux"),
    ("philly", "321 nodes of 2 and 231 of 8 GPUs, as at Microsoft in 2017"),
];

const MOST_NODES: i64 = 1_000_000;
const MOST_GPUS: i64 = 1_000_000;
const MOST_GROUPS: usize = 10_000;

/// The cluster, its queues and its name, from a built-in name, the short form `6x4 t4, 3x8 a100`, a TOML file, or
/// `openb:PATH`, a list of nodes as Alibaba published it in 2023.
pub fn load_cluster(text: &str) -> Result<(Cluster, QueueTree, String), Error> {
    let text = text.trim();
    let built_in = |toml: &str| parse_toml(text, toml);
    let draft = match text {
        "demo" => built_in(include_str!("clusters/demo.toml"))?,
        "philly" => built_in(include_str!("clusters/philly.toml"))?,
        "small" => short("4x4 v100")?,
        "homogeneous-64" | "pollux-homo-64" => short("16x4 t4")?,
        "sia-hetero-64" => short("6x4 t4, 2x8 a100, 3x8 rtx2080ti")?,
        _ if text.starts_with("openb:") => return from_openb(text),
        _ if text.ends_with(".toml") || Path::new(text).exists() => return from_file(text),
        _ if text.starts_with(|first: char| first.is_ascii_digit()) => short(text)?,
        _ => return Err(unknown(text)),
    };
    let faulty = |what| Error::File { file: text.into(), what };
    check_size(&draft).map_err(faulty)?;
    let (cluster, queues) = draft.build().map_err(|invalid| faulty(invalid.to_string()))?;
    Ok((cluster, queues, text.into()))
}

fn from_file(file: &str) -> Result<(Cluster, QueueTree, String), Error> {
    let toml = read_text(Path::new(file))?;
    let draft: ClusterDraft = parse_toml(file, &toml)?;
    check_size(&draft).map_err(|what| Error::File { file: file.into(), what })?;
    let (cluster, queues) = draft.build().map_err(|invalid| {
        let what = invalid.to_string();
        match line_of(&toml, &invalid.field) {
            Some(line) => Error::Line { file: file.into(), line, what },
            None => Error::File { file: file.into(), what },
        }
    })?;
    Ok((cluster, queues, file.into()))
}

fn from_openb(text: &str) -> Result<(Cluster, QueueTree, String), Error> {
    let file = text.trim_start_matches("openb:");
    let (draft, lines) = read_openb_nodes_with_lines(Path::new(file))?;
    check_size(&draft).map_err(|what| Error::File { file: file.into(), what })?;
    let (cluster, queues) = draft.build().map_err(|invalid| {
        let index = |field: &str| field.strip_prefix("nodes[")?.split_once(']')?.0.parse::<usize>().ok();
        let what = invalid.to_string();
        match index(&invalid.field).and_then(|index| lines.get(index)) {
            Some(&line) => Error::Line { file: file.into(), line, what },
            None => Error::File { file: file.into(), what },
        }
    })?;
    Ok((cluster, queues, text.into()))
}

/// Where a field like `nodes[2].kind` stands: the line of the key below the third `[[nodes]]`, or that of the heading
/// if the key is left to its default. `None` if the table is written in another way.
fn line_of(toml: &str, field: &str) -> Option<u64> {
    let (list, rest) = field.split_once('[')?;
    let (index, key) = rest.split_once(']')?;
    let heading = format!("[[{list}]]");
    let mut headings = toml.lines().enumerate().filter(|(_, line)| line.trim() == heading);
    let (start, _) = headings.nth(index.parse().ok()?)?;
    let table = toml.lines().enumerate().skip(start + 1).take_while(|(_, line)| !line.trim_start().starts_with('['));
    let named = |line: &str| line.split_once('=').is_some_and(|(name, _)| name.trim() == key.trim_start_matches('.'));
    let line = table.into_iter().find(|(_, line)| named(line)).map_or(start, |(line, _)| line);
    Some(line as u64 + 1)
}

fn short(text: &str) -> Result<ClusterDraft, Error> {
    ClusterDraft::parse_short(text).map_err(|invalid| Error::File { file: text.into(), what: invalid.to_string() })
}

/// Refuses what would fill the memory before anything is built.
fn check_size(draft: &ClusterDraft) -> Result<(), String> {
    if draft.nodes.len() > MOST_GROUPS {
        return Err(format!("nodes: expected at most {MOST_GROUPS} groups, found {}", draft.nodes.len()));
    }
    let nodes = draft.nodes.iter().fold(0_i64, |sum, group| sum.saturating_add(group.count.max(0)));
    if nodes > MOST_NODES {
        return Err(format!("nodes: expected at most {MOST_NODES} nodes, found {nodes}"));
    }
    let gpus = |group: &cluster::NodeDraft| group.count.max(0).saturating_mul(group.gpus.max(0));
    let gpus = draft.nodes.iter().map(gpus).fold(0, i64::saturating_add);
    if gpus > MOST_GPUS {
        return Err(format!("nodes: expected at most {MOST_GPUS} GPUs, found {gpus}"));
    }
    Ok(())
}

fn unknown(text: &str) -> Error {
    let names = CLUSTERS.map(|(name, _)| name);
    let near = suggestion(text, names);
    Error::Name(format!(
        "unknown cluster `{}`{near} (known: {}; or a short form like `6x4 t4, 3x8 a100`; or a file ending in .toml; or openb:PATH)",
        shown(text),
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a cluster file of this text.
    fn fault(toml: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, toml).unwrap();
        let error = load_cluster(path.to_str().unwrap()).expect_err("the file is faulty").to_string();
        assert!(!error.contains('\n'), "one line: {error}");
        error.replace(path.to_str().unwrap(), "FILE")
    }

    #[test]
    fn built_in_clusters_have_the_sizes_they_promise() {
        let gpus = CLUSTERS.map(|(name, _)| load_cluster(name).unwrap().0.gpus());
        assert_eq!(gpus, [64, 16, 64, 64, 64, 2490]);
        let (_, queues, name) = load_cluster("demo").unwrap();
        assert_eq!((queues.len(), name.as_str()), (4, "demo"));
    }

    #[test]
    fn a_short_form_is_a_cluster() {
        assert_eq!(load_cluster("6x4 t4, 3x8 a100").unwrap().0.gpus(), 48);
        let error = load_cluster("6x4 t4, many").unwrap_err().to_string();
        assert!(
            error.ends_with("expected groups of nodes like `3x8 a100`, separated by commas, found many"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = load_cluster("dmeo").unwrap_err().to_string();
        assert!(error.starts_with("unknown cluster `dmeo`; did you mean `demo`? (known: demo, small"), "{error}");
    }

    #[test]
    fn a_file_is_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, "[[nodes]]\ncount = 7\n").unwrap();
        let (cluster, _, _) = load_cluster(path.to_str().unwrap()).unwrap();
        assert_eq!((cluster.node_count(), cluster.gpus()), (7, 0));
    }

    #[test]
    fn a_list_of_nodes_is_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nodes.csv");
        let load = |text: &str| {
            std::fs::write(&path, text).unwrap();
            load_cluster(&format!("openb:{}", path.display()))
                .map_err(|error| error.to_string().replace(path.to_str().unwrap(), "FILE"))
        };
        let nodes = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\nn1,64000,1024,8,G2\n\nn2,64000,1024,2,T4\n";
        let (cluster, queues, name) = load(nodes).unwrap();
        assert_eq!((cluster.node_count(), cluster.gpus(), cluster.kinds().count(), queues.len()), (3, 10, 2, 1));
        assert!(name.starts_with("openb:"), "{name}");
        assert!(cluster.kind_named("T4").is_some() && cluster.node_named("n1").is_some());
        let twice = load(&nodes.replace("n2,", "n1,")).unwrap_err();
        assert!(twice.starts_with("FILE:5: nodes[2].name: "), "{twice}");
        let many = load(&nodes.replace("8,G2", "80,G2")).unwrap_err();
        assert_eq!(many, "FILE:3: column `gpu`: expected a whole number from 0 to 64, found 80");
        assert_eq!(load_cluster("openb:/nowhere").unwrap_err().to_string(), "cannot read /nowhere");
    }

    #[test]
    fn the_documented_example_is_a_cluster() {
        let page = include_str!("../../../docs/workloads.md");
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
        let (cluster, queues) = parse_toml::<ClusterDraft>("example", example).unwrap().build().unwrap();
        assert_eq!((cluster.gpus(), cluster.node_count(), queues.len()), (32, 9, 4));
    }

    #[test]
    fn an_unknown_key_is_refused_with_line_column_and_text() {
        let error = fault(b"[[nodes]]\ncount = 1\ngpu = 4\n");
        assert!(error.starts_with("FILE:3:1: unknown field `gpu`"), "{error}");
        assert!(error.ends_with("in `gpu = 4`"), "{error}");
    }

    #[test]
    fn broken_toml_is_refused_with_line_and_column() {
        let error = fault(b"[[nodes]]\ncount = \n");
        assert!(error.starts_with("FILE:2:"), "{error}");
        assert!(fault(b"").starts_with("FILE:1:1: missing field `nodes`"), "{}", fault(b""));
    }

    #[test]
    fn faults_of_meaning_name_the_field() {
        let error = fault(b"[[nodes]]\ncount = -1\n");
        assert_eq!(error, "FILE:2: nodes[0].count: expected a whole number from 0 to 1000000, found -1");
    }

    #[test]
    fn zero_bytes_and_absurd_sizes_are_refused() {
        assert_eq!(fault(b"[[nodes]]\n\0"), "FILE:2: expected text, found a zero byte");
        assert_eq!(fault(&vec![b' '; (16 << 20) + 1]), "FILE: expected at most 16 MiB, found more");
        let error = load_cluster("1000000x64 a100").unwrap_err().to_string();
        assert_eq!(error, "1000000x64 a100: nodes: expected at most 1000000 GPUs, found 64000000");
    }
}
