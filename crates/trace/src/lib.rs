//! Workloads: jobs with the truth about them, from tables, from public traces, or drawn from a seed; and the clusters
//! they run on, from files or by name.
//!
//! Part of the shell: it reads and writes files. It knows neither policies nor the engine.

mod catalogue;
mod cluster_file;
mod config_file;
mod csv;
mod csv_out;
mod depend;
mod distance;
mod distribution;
mod error;
mod inspect;
mod like;
mod load;
mod losses;
mod profiles;
mod readers;
mod sample;
mod stream;
mod synthetic;
mod table;
mod training;

pub use catalogue::{Catalogue, Model, Noise, OnKind, Steps};
pub use cluster_file::{CLUSTERS, load_cluster};
pub use config_file::{read_text, read_toml};
pub use csv::read_csv;
pub use csv_out::{print_csv, write_csv};
pub use distance::{Aligned, Distances, correlation, ks};
pub use distribution::Distribution;
pub use error::Error;
pub use inspect::{
    ArrivalFigures, Inspection, Observed, Offered, OverTime, Percentiles, Shares, SizeFigures, UserFigure, UserFigures,
    inspect, run_time_s,
};
pub use like::{LIKENESSES, Like};
pub use load::{WORKLOADS, is_file, load_workload};
pub use losses::losses;
pub use profiles::{Application, Profiles};
pub use readers::{read_openb_nodes, read_philly};
pub use sample::{Part, Rate, Sampling, parse_span, parse_window, sample};
pub use stream::{Jobs, Stream};
pub use synthetic::{Arrivals, Durations, Synthetic};
pub use training::Training;

use perf::TrueJob;

/// Jobs to be run, in order of submission; `spec.after` names them by their position in that order.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    pub name: String,
    pub jobs: Vec<TrueJob>,
    /// What was taken for granted where the source does not say it; to be printed with every result.
    pub assumptions: Vec<String>,
}
