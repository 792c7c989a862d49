//! All automation: `cargo xtask tidy | docs | data-checks | generator-docs | catalogue | fidelity | nightly`.

mod catalogue;
mod data_checks;
mod docs;
mod fidelity;
mod fit_checks;
mod generator_docs;
mod nightly;
mod pollux_checks;
mod program_checks;
mod reproduction_checks;
mod sia_checks;
mod tidy;
mod trace_checks;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Automation of the Moira repository")]
enum Task {
    /// Check the rules of the house that no compiler checks
    Tidy,
    /// Write the pages that are generated from the code; with --check, only see whether they are up to date
    Docs {
        #[arg(long)]
        check: bool,
    },
    /// Compare with public traces and with outputs of the authors' programs, which lie beside the repository
    DataChecks {
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Compare generated workloads with the public lists they are like and write the figures into docs/generator.md
    GeneratorDocs {
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        #[arg(long)]
        check: bool,
    },
    /// Fit the catalogue of trainings to the published measurements; write its figures, and docs/catalogue.md, which says
    /// how far they are from the measurements
    Catalogue {
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        #[arg(long)]
        check: bool,
    },
    /// Run a mix of real trainings under the real service, replay them in the simulator, and write docs/fidelity.md, which
    /// says how far the two are apart
    Fidelity(fidelity::Fidelity),
    /// The long hunts: thousands of random histories and programs, drawn anew, kills, power cuts, failing disks and a soak of
    /// the service, and the data checks if there is data
    Nightly {
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Random histories, and at least as many programs of the solver, for each property
        #[arg(long, default_value_t = 500)]
        cases: u32,
    },
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Tidy => tidy::run(&root()),
        Task::Docs { check } => docs::run(&root(), check),
        Task::DataChecks { data } => data_checks::run(&root(), &data),
        Task::GeneratorDocs { data, check } => generator_docs::run(&root(), &data, check),
        Task::Catalogue { data, check } => catalogue::run(&root(), &data, check),
        Task::Fidelity(fidelity) => fidelity.run(&root()),
        Task::Nightly { data, cases } => nightly::run(&root(), data.as_deref(), cases),
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the repository").to_path_buf()
}

/// Where Cargo builds: in `target`, unless the environment says otherwise.
fn target_dir(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

#[allow(clippy::print_stdout, reason = "a task talks to whoever runs it")]
fn say(text: &str) {
    println!("{text}");
}
