//! What a job has of the shell it was submitted from: folder, umask and variables, as people know it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::faults::{is_there, pass_over};
use crate::service::{FOUR_DEVICES, Service, binary};

/// What `moira run` shows of a job, run by a shell that did `before`; it must succeed.
#[track_caller]
fn shown(service: &Service, before: &str, words: &str) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}\nmoira run {words}")]).stdin(Stdio::null());
    shell.env("MOIRA_DATA_DIR", service.data_dir()).env_remove("MOIRA_SERVER").env("PATH", with_binary());
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The path of this process, and our binary by its name.
fn with_binary() -> String {
    format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap())
}

/// What `env` has printed.
fn variables(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once('=')).collect()
}

#[test]
fn a_job_runs_in_the_activated_environment_of_its_caller() {
    if !is_there("python3") {
        return pass_over("python3 is not installed");
    }
    let service = Service::start(FOUR_DEVICES);
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(folder.path().join("env")).status();
    assert!(made.unwrap().success());
    let before = format!("cd {} && . env/bin/activate && umask 027", folder.path().display());
    let script = "'import os, sys; print(sys.prefix); print(os.environ[\"VIRTUAL_ENV\"]); open(\"made\", \"w\")'";
    let found = shown(&service, &before, &format!("-- python -c {script}"));
    let expected = folder.path().join("env").display().to_string();
    assert_eq!(found.lines().collect::<Vec<_>>(), [&expected, &expected]);
    assert_eq!(mode(&folder.path().join("made")), 0o640);
}

#[test]
fn a_job_runs_in_the_conda_environment_of_its_caller() {
    let service = Service::start(FOUR_DEVICES);
    let folder = tempfile::tempdir().unwrap();
    let env = folder.path().join("envs/vision");
    fs::create_dir_all(env.join("bin")).unwrap();
    let python = env.join("bin/python");
    let script = "#!/bin/sh\nprintf '%s\\n' \"$0 $*\" \"$CONDA_PREFIX\" \"$CONDA_DEFAULT_ENV\" \"$CONDA_SHLVL\"\n";
    fs::write(&python, script).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    // What `conda activate` does to a shell.
    let env = env.display();
    let before = format!(
        "export PATH={env}/bin:$PATH CONDA_PREFIX={env} CONDA_DEFAULT_ENV=vision CONDA_SHLVL=1 CONDA_EXE=/c/bin/conda"
    );
    let expected = format!("{env}/bin/python train.py\n{env}\nvision\n1\n");
    assert_eq!(shown(&service, &before, "-- python train.py"), expected);
    let text = shown(&service, &format!("{before} PYTHONPATH=/lib"), "-- env");
    let all = variables(&text);
    assert_eq!((all["CONDA_EXE"], all["PYTHONPATH"]), ("/c/bin/conda", "/lib"));
    let deactivated = shown(&service, "unset CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL CONDA_EXE", "-- env");
    assert!(!deactivated.contains("CONDA_"), "{deactivated}");
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn export_says_which_variables_of_the_caller_a_job_has() {
    let service = Service::start(FOUR_DEVICES);
    let before = "export LC_ALL=C HF_HOME=/hub WANDB_KEY=secret RANK=77 CUDA_VISIBLE_DEVICES=77 MOIRA_JOB_NAME=other";
    let names = ["LC_ALL", "HF_HOME", "WANDB_KEY", "COLOUR", "RANK", "CUDA_VISIBLE_DEVICES", "MOIRA_JOB_NAME"];
    let found = |options: &str| {
        let text = shown(&service, before, &format!("{options} --env COLOUR=red -- env"));
        let all = variables(&text);
        names.map(|name| all.get(name).copied().unwrap_or("-").to_string()).join(" ")
    };
    assert_eq!(found(""), "C - - red 0  env");
    assert_eq!(found("--export=NONE"), "- - - red 0  env");
    assert_eq!(found("--export=HF_HOME,LC_*"), "C /hub - red 0  env");
    assert_eq!(found("--export=ALL"), "C /hub secret red 0  env");
    let (code, said) = service.failure(&["submit", "--export=NOT_SET_HERE", "--", "env"]);
    assert!(code == 2 && said.contains("--export NOT_SET_HERE: it has no value here"), "{code}: {said}");
}

#[test]
fn whatever_a_worker_is_told_of_its_place_is_never_passed_on() {
    let service = Service::start(FOUR_DEVICES);
    let text = shown(&service, "", "--export=NONE --workers 2 -- env");
    // What every program has, and what the cores of this worker come to.
    let of_all = ["PATH", "LANG", "TZ", "TMPDIR", "HOME", "USER", "LOGNAME", "SHELL", "OMP_NUM_THREADS"];
    let names: Vec<&str> = variables(&text).into_keys().filter(|name| !of_all.contains(name)).collect();
    for known in ["RANK", "ROLE_NAME", "PET_NPROC_PER_NODE", "TORCHELASTIC_RUN_ID", "MOIRA_RUN_TOKEN"] {
        assert!(names.contains(&known), "{known}: {names:?}");
    }
    for name in names {
        let (code, said) = service.failure(&["submit", &format!("--export={name}"), "--", "true"]);
        let expected = format!("--export {name}: it is set for each worker, and not passed on");
        assert!(code == 2 && said.contains(&expected), "{name}: {code}: {said}");
    }
}

#[test]
fn a_job_submits_another_that_has_nothing_of_its_own() {
    let service = Service::start(FOUR_DEVICES);
    let inner =
        "echo outer=$MOIRA_JOB_ID=$MOIRA_RUN_TOKEN; export OMP_NUM_THREADS=77; exec moira run --export=ALL -- env";
    let text = shown(&service, "", &format!("--array 5-5 --name outer -- sh -c '{inner}'"));
    let of_task: String = text.lines().map(|line| format!("{}\n", line.strip_prefix("[5] ").unwrap())).collect();
    let text = String::from_utf8(service.moira(&["logs", "0_5"]).stdout).unwrap();
    assert_eq!(of_task, text, "an array shows what its tasks write, and which");
    let (outer, rest) = text.split_once('\n').unwrap();
    let outer: Vec<&str> = outer.split('=').collect();
    let all = variables(rest);
    assert_eq!((outer[1], all["MOIRA_JOB_ID"]), ("0_5", "1"), "{text}");
    assert_ne!(outer[2], all["MOIRA_RUN_TOKEN"]);
    assert_eq!((all["MOIRA_JOB_NAME"], all.get("MOIRA_ARRAY_TASK_ID")), ("env", None), "{text}");
    assert_eq!(all["OMP_NUM_THREADS"], "1", "{text}");
    assert_eq!(service.show("1")["state"], "succeeded");
}
