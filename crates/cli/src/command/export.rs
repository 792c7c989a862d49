//! Which of the caller's variables a job gets: by default those that say where programs and libraries are and how text is
//! written, so that an activated environment works.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::str::FromStr;

/// What `--export` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Export {
    All,
    None,
    /// Names, and beginnings of names that end in `*`.
    Only(Vec<String>),
}

/// What is passed on, and the names of what would be if it were text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Exported {
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) left_out: Vec<String>,
}

/// What a job gets if nothing is said.
const USUAL: [&str; 8] = ["PATH", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG", "LC_*", "TZ"];

/// What Moira and torchrun tell each worker, and what a job that submits another has from them itself.
const NEVER: [&str; 15] = [
    "MOIRA_*",
    "PET_*",
    "TORCHELASTIC_*",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
];

/// In a job it was set for the cores of that job's worker.
const OF_THE_JOB_ONLY: &str = "OMP_NUM_THREADS";

/// What of this environment a job gets.
pub(crate) fn exported(
    export: Option<&Export>,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Exported, String> {
    let environment: BTreeMap<OsString, OsString> = environment.collect();
    if let Some(Export::Only(names)) = export {
        names.iter().try_for_each(|name| check(name, &environment))?;
    }
    let in_job = environment.contains_key(&OsString::from("MOIRA_JOB_ID"));
    let is_wanted = |name: &str| match export {
        None => is_among(name, USUAL),
        Some(Export::All) => !(in_job && name == OF_THE_JOB_ONLY),
        Some(Export::None) => false,
        Some(Export::Only(names)) => is_among(name, names.iter().map(String::as_str)),
    };
    let mut found = Exported::default();
    for (name, value) in environment {
        let shown = name.to_string_lossy().into_owned();
        if is_among(&shown, NEVER) || !is_wanted(&shown) {
            continue;
        }
        match value.into_string() {
            Ok(value) if is_name(&shown) => drop(found.variables.insert(shown, value)),
            _ => found.left_out.push(shown),
        }
    }
    Ok(found)
}

/// A variable that is asked for by its name must be there to be passed on.
fn check(name: &str, environment: &BTreeMap<OsString, OsString>) -> Result<(), String> {
    if is_among(name, NEVER) {
        return Err(format!("--export {name}: it is set for each worker, and not passed on"));
    }
    let value = environment.get(&OsString::from(name));
    match value.map(|value| value.to_str()) {
        _ if name.ends_with('*') => Ok(()),
        Some(Some(_)) => Ok(()),
        Some(None) => Err(format!("--export {name}: its value is no text in UTF-8")),
        None => Err(format!("--export {name}: it has no value here")),
    }
}

fn is_among<'a>(name: &str, patterns: impl IntoIterator<Item = &'a str>) -> bool {
    patterns.into_iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    })
}

/// Some shells put functions into the environment, under names that are none.
fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    text.bytes().next().is_some_and(is_letter) && text.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Export, String> {
        match text {
            "ALL" => return Ok(Export::All),
            "NONE" => return Ok(Export::None),
            _ => {}
        }
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_string()).collect();
        let is_sound =
            |name: &String| !matches!(name.as_str(), "ALL" | "NONE") && is_name(name.strip_suffix('*').unwrap_or(name));
        match names.iter().find(|name| !is_sound(name)) {
            None => Ok(Export::Only(names)),
            Some(wrong) => Err(format!(
                "expected ALL, NONE, or names separated by commas like PATH,HF_HOME,WANDB_*, found `{wrong}`"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    /// The names of what a job gets of a shell with an activated environment, in a job or not.
    fn passed_on(export: &str, further: &[&str]) -> Result<String, String> {
        let shell = ["PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LC_ALL", "HOME", "AWS_SECRET_ACCESS_KEY", "BASH_FUNC_f%%"];
        let environment = shell.iter().chain(further).map(|name| (OsString::from(name), OsString::from("value")));
        let export = (!export.is_empty()).then(|| export.parse()).transpose()?;
        let found = exported(export.as_ref(), environment)?;
        Ok(found.variables.into_keys().collect::<Vec<_>>().join(" "))
    }

    const IN_A_JOB: [&str; 7] = [
        "MOIRA_JOB_ID",
        "MOIRA_RUN_TOKEN",
        "RANK",
        "MASTER_PORT",
        "PET_NNODES",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
    ];

    #[test]
    fn every_variable_is_passed_on_by_itself_or_not() {
        let by_default = [
            "PATH",
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
            "CONDA_DEFAULT_ENV",
            "LD_LIBRARY_PATH",
            "PYTHONPATH",
            "LANG",
            "LC_ALL",
            "LC_CTYPE",
            "TZ",
        ];
        let if_asked = ["HOME", "USER", "PYTHONHOME", "LD_PRELOAD", "LANGUAGE", "HF_HOME", "OMP_NUM_THREADS", "RANKS"];
        let never = [
            "MOIRA_SERVER",
            "MOIRA_JOB_NAME",
            "PET_NNODES",
            "PET_MASTER_ADDR",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "MASTER_ADDR",
            "MASTER_PORT",
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "GROUP_RANK",
            "GROUP_WORLD_SIZE",
            "ROLE_NAME",
            "ROLE_RANK",
            "ROLE_WORLD_SIZE",
            "CUDA_VISIBLE_DEVICES",
        ];
        let is_passed_on = |export: Option<Export>, name: &str| {
            let environment = std::iter::once((OsString::from(name), OsString::from("value")));
            exported(export.as_ref(), environment).map(|found| found.variables.contains_key(name))
        };
        let with = |name: &str| {
            let by_name = is_passed_on(Some(Export::Only(vec![name.into()])), name);
            (is_passed_on(None, name).unwrap(), is_passed_on(Some(Export::All), name).unwrap(), by_name.is_ok())
        };
        by_default.iter().for_each(|name| assert_eq!(with(name), (true, true, true), "{name}"));
        if_asked.iter().for_each(|name| assert_eq!(with(name), (false, true, true), "{name}"));
        never.iter().for_each(|name| assert_eq!(with(name), (false, false, false), "{name}"));
    }

    #[test]
    fn a_job_gets_what_an_activated_environment_needs_and_no_secrets() {
        assert_eq!(passed_on("", &[]).unwrap(), "CONDA_PREFIX LC_ALL PATH VIRTUAL_ENV");
        assert_eq!(passed_on("NONE", &[]).unwrap(), "");
        assert_eq!(passed_on("HOME,AWS_*", &[]).unwrap(), "AWS_SECRET_ACCESS_KEY HOME");
        assert_eq!(
            passed_on("ALL", &["OMP_NUM_THREADS"]).unwrap(),
            "AWS_SECRET_ACCESS_KEY CONDA_PREFIX HOME LC_ALL OMP_NUM_THREADS PATH VIRTUAL_ENV"
        );
    }

    #[test]
    fn what_a_job_has_from_moira_and_torchrun_is_never_passed_on() {
        let all = "AWS_SECRET_ACCESS_KEY CONDA_PREFIX HOME LC_ALL PATH VIRTUAL_ENV";
        assert_eq!(passed_on("ALL", &IN_A_JOB).unwrap(), all);
        assert_eq!(
            passed_on("MOIRA_*,CUDA_*,HOME", &IN_A_JOB).unwrap_err(),
            "--export MOIRA_*: it is set for each worker, and not passed on"
        );
        assert_eq!(passed_on("CUDA_*,HOME", &IN_A_JOB).unwrap(), "HOME");
        assert!(passed_on("RANK", &IN_A_JOB).unwrap_err().starts_with("--export RANK: "));
    }

    #[test]
    fn a_name_that_has_no_value_and_a_word_that_is_no_name_are_refused() {
        assert_eq!(passed_on("HF_HOME", &[]).unwrap_err(), "--export HF_HOME: it has no value here");
        assert_eq!(passed_on("HF_*", &[]).unwrap(), "");
        for wrong in ["PATH,ALL", "PATH,,TZ", "A=b", "*", "7UP", "PATH NAME"] {
            assert!(wrong.parse::<Export>().unwrap_err().starts_with("expected ALL, NONE, or names"), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_text_is_named_and_left_out() {
        let latin = OsString::from_vec(b"fran\xe7ais".to_vec());
        let environment = || [(OsString::from("LANG"), latin.clone()), ("TZ".into(), "UTC".into())].into_iter();
        let found = exported(None, environment()).unwrap();
        assert_eq!((found.left_out, found.variables.len()), (vec!["LANG".to_string()], 1));
        let refused = exported(Some(&Export::Only(vec!["LANG".into()])), environment()).unwrap_err();
        assert_eq!(refused, "--export LANG: its value is no text in UTF-8");
    }
}
