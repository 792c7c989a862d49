//! The figures behind `like-…` workloads, counted by us over public job lists or read from published curves; no row of any
//! list is here. `docs/generator.md` says how the workloads drawn from them compare with the lists.
//!
//! Where the lists come from:
//! - Philly: Jeon et al., ATC 2019, msr-fiddle/philly-traces, CC-BY-4.0; the reduced list of 111,549 jobs.
//! - Helios Venus: Hu et al., SC 2021, S-Lab-System-Group/HeliosData, CC-BY-4.0; the reduced list of 125,303 GPU jobs, whose
//!   run times are cut at 48 h.
//! - PAI: Weng et al., NSDI 2022, alibaba/clusterdata cluster-trace-gpu-v2020, CC-BY-4.0; a sample of 60,105 of 732,691 GPU
//!   tasks, run times cut at 48 h, parts of a GPU rounded up to one.
//! - Acme: Hu et al., NSDI 2024, InternLM/AcmeTrace, CC-BY-4.0; curves of the Seren cluster read from the figures, since the
//!   list itself could not be had.
//! - Outcomes: the summary table `cluster_summary.csv` of AcmeTrace, which covers Seren, Philly and Helios (all clusters).
//!
//! How they were counted:
//! - `hours`, `weekdays`: submissions by hour of the day and day of the week, Monday first, relative to the mean.
//! - `day_deviation`, `day_memory`: standard deviation and correlation from one day to the next of the logarithm of the jobs
//!   of a day over those of an average such day of the week (counted for Philly: 0.65, of which bursts make up a part).
//! - `gaps`: times between submissions once hours and days are evened out, over their mean, at [`LEVELS`], without those
//!   of the same moment. The single longest gap of Philly (222) is cut, because it alone would double the variance.
//! - `same_moment`: such that, with what falls into one second by chance, the share in the same second is as counted
//!   (Philly 0.096, Venus 0.092).
//! - `burst_share`, `burst_jobs`: how far the rank of a gap is shared with the gaps around it, and over how many jobs that
//!   fades; from rank correlations at distances of 1 to 200 jobs (for Philly 0.51 and 0.10, of which we keep the first: a
//!   memory of 60 jobs, which the second asks for, would drown the rhythm of the day).
//! - `sizes`: jobs by GPUs, in per cent, without sizes of a few jobs. `classes`: run times at [`LEVELS`] by GPUs.
//! - `repeats`: how much more often two neighbours are of the same size than by chance. `tenant_stays`: the same for
//!   tenants. `alike`: such that neighbours' run times correlate in rank as in the list.

/// The shares at which [`Figures::gaps`] and [`Class::run_times`] stand.
pub(crate) const LEVELS: [f64; 30] = [
    0.0, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85,
    0.9, 0.925, 0.95, 0.965, 0.98, 0.99, 0.995, 0.998, 0.9995, 1.0,
];

/// What is known of one cluster's workload.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    /// What of it is not from that cluster, or otherwise to be kept in mind.
    pub(crate) caveats: &'static [&'static str],
    /// GPUs of the cluster, and the jobs it got on a day.
    pub(crate) gpus: u32,
    pub(crate) jobs_per_day: f64,
    pub(crate) hours: [f64; 24],
    pub(crate) weekdays: [f64; 7],
    pub(crate) day_deviation: f64,
    pub(crate) day_memory: f64,
    pub(crate) same_moment: f64,
    pub(crate) gaps: [f64; LEVELS.len()],
    pub(crate) burst_share: f64,
    pub(crate) burst_jobs: f64,
    pub(crate) sizes: &'static [(u32, f64)],
    /// By ascending size.
    pub(crate) classes: &'static [Class],
    pub(crate) tenants: Tenants,
    /// How often a job's tenant is that of the job before, beyond chance.
    pub(crate) tenant_stays: f64,
    /// How often a job is the one before, submitted again; these are among those whose tenant stays.
    pub(crate) repeats: f64,
    /// Correlation of the run times of neighbours of one tenant, as normal scores.
    pub(crate) alike: f64,
    pub(crate) outcomes: Option<Outcomes>,
}

/// Run times in seconds of jobs of up to so many GPUs, and more than those of the class before.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) up_to: u32,
    pub(crate) run_times: [f64; LEVELS.len()],
}

#[derive(Debug)]
pub(crate) enum Tenants {
    /// Shares of the jobs, in per cent.
    Shares(&'static [f64]),
    /// So many, the activity of the i-th proportional to 1/i.
    Zipf(u32),
}

/// How jobs end, by their rank among the run times of their class: against a weight of 1 for those that complete,
/// cancelled and failed ones have the weight `a * exp(b * rank)`. Such that their shares of jobs and of GPU time are as
/// published.
#[derive(Debug)]
pub(crate) struct Outcomes {
    pub(crate) cancelled: (f64, f64),
    pub(crate) failed: (f64, f64),
}

pub(crate) const ALL: [&Figures; 4] = [&PHILLY, &VENUS, &PAI, &ACME];

/// Sizes and run times of the whole list; arrivals of October and November 2017, the steady part (90,954 jobs). Tenants are
/// virtual clusters, known for two jobs of three. Outcomes as published: 60.4 % completed, 9.0 % cancelled, 30.5 % failed,
/// with 32, 29 and 39 % of GPU time.
pub(crate) const PHILLY: Figures = Figures {
    name: "philly",
    summary: "Microsoft Philly 2017 (ATC 2019)",
    caveats: &["no list says how a run time depends on the scheduler: run times are taken as work"],
    gpus: 2490,
    jobs_per_day: 1491.0,
    hours: [
        1.36, 0.997, 1.28, 1.14, 0.77, 1.15, 1.69, 1.94, 1.11, 0.872, 0.763, 0.654, 0.592, 0.597, 0.465, 0.639, 1.06,
        0.73, 0.868, 0.708, 1.04, 0.933, 1.33, 1.3,
    ],
    weekdays: [0.927, 1.04, 1.15, 1.32, 1.38, 0.635, 0.541],
    day_deviation: 0.55,
    day_memory: 0.51,
    same_moment: 0.06,
    gaps: [
        0.00167, 0.0115, 0.0173, 0.0252, 0.0379, 0.0494, 0.0621, 0.0806, 0.1, 0.125, 0.154, 0.19, 0.235, 0.295, 0.371,
        0.479, 0.633, 0.86, 1.22, 1.84, 2.87, 3.76, 5.25, 6.79, 9.4, 13.1, 16.6, 21.2, 29.7, 60.0,
    ],
    burst_share: 0.5,
    burst_jobs: 20.0,
    sizes: &[
        (1, 86.66),
        (2, 2.261),
        (4, 4.919),
        (7, 0.001793),
        (8, 5.124),
        (12, 0.01076),
        (16, 0.7638),
        (24, 0.03586),
        (32, 0.1901),
        (48, 0.001793),
        (64, 0.0251),
        (128, 0.009861),
    ],
    classes: &[
        Class {
            up_to: 1,
            run_times: [
                1.0,
                15.0,
                25.0,
                42.0,
                58.0,
                66.0,
                75.0,
                128.0,
                235.0,
                439.0,
                639.0,
                892.0,
                1_198.0,
                1_528.0,
                1_948.0,
                2_416.0,
                2_734.0,
                3_955.0,
                5_671.0,
                9_008.0,
                15_590.0,
                24_250.0,
                48_120.0,
                82_730.0,
                209_300.0,
                535_400.0,
                1_089_000.0,
                2_060_000.0,
                4_160_000.0,
                5_196_000.0,
            ],
        },
        Class {
            up_to: 4,
            run_times: [
                1.0,
                8.0,
                11.0,
                14.0,
                19.0,
                24.0,
                37.0,
                92.0,
                185.0,
                463.4,
                786.4,
                1_094.0,
                1_948.0,
                4_710.0,
                13_100.0,
                19_620.0,
                39_170.0,
                65_640.0,
                92_050.0,
                149_300.0,
                218_000.0,
                279_500.0,
                429_700.0,
                562_300.0,
                905_400.0,
                1_464_000.0,
                1_975_000.0,
                2_278_000.0,
                5_064_000.0,
                5_187_000.0,
            ],
        },
        Class {
            up_to: 8,
            run_times: [
                1.0,
                13.0,
                25.0,
                40.0,
                85.8,
                235.0,
                493.0,
                878.0,
                1_276.0,
                2_350.0,
                4_035.0,
                7_311.0,
                12_570.0,
                16_480.0,
                27_460.0,
                50_010.0,
                76_670.0,
                112_800.0,
                173_400.0,
                236_100.0,
                365_300.0,
                462_400.0,
                655_300.0,
                842_500.0,
                1_234_000.0,
                1_932_000.0,
                2_568_000.0,
                3_743_000.0,
                4_493_000.0,
                5_187_000.0,
            ],
        },
        Class {
            up_to: u32::MAX,
            run_times: [
                1.0,
                14.0,
                26.0,
                36.9,
                51.0,
                90.7,
                266.2,
                567.0,
                973.6,
                1_441.0,
                2_469.0,
                4_766.0,
                8_440.0,
                14_400.0,
                17_340.0,
                28_650.0,
                42_880.0,
                55_870.0,
                75_590.0,
                116_100.0,
                184_000.0,
                247_400.0,
                371_000.0,
                537_400.0,
                721_000.0,
                1_295_000.0,
                1_572_000.0,
                3_153_000.0,
                3_339_000.0,
                3_413_000.0,
            ],
        },
    ],
    tenants: Tenants::Shares(&[50.7, 19.8, 11.8, 9.23, 2.23, 1.66, 1.55, 1.37, 0.823, 0.429, 0.428]),
    tenant_stays: 0.78,
    repeats: 0.344,
    alike: 0.6,
    outcomes: Some(Outcomes { cancelled: (0.003515, 5.98), failed: (0.1773, 2.099) }),
};

/// Sizes and run times of the whole list; arrivals from April 2020 on. Tenants: only two virtual clusters tell (11 users, who
/// stay with 0.76); their number is ours. Outcomes of Helios as a whole: 62.4 % completed, 22.1 % cancelled, 15.5 % failed, with
/// 51, 39 and 9 % of GPU time.
pub(crate) const VENUS: Figures = Figures {
    name: "helios-venus",
    summary: "SenseTime Helios, cluster Venus, 2020 (SC 2021)",
    caveats: &[
        "run times are cut at 48 h, as in the list they were counted from",
        "the number of tenants and their activity are ours: the list names users for 1.5 % of jobs",
    ],
    gpus: 1064,
    jobs_per_day: 696.0,
    hours: [
        0.897, 0.658, 0.6, 0.384, 0.268, 0.205, 0.187, 0.224, 0.374, 0.796, 1.29, 1.47, 1.16, 1.3, 1.56, 1.66, 1.73,
        1.73, 1.28, 1.31, 1.34, 1.36, 1.15, 1.04,
    ],
    weekdays: [1.06, 1.11, 1.28, 1.2, 0.948, 0.681, 0.719],
    day_deviation: 0.42,
    day_memory: 0.43,
    same_moment: 0.081,
    gaps: [
        0.000985, 0.00998, 0.0168, 0.0291, 0.0611, 0.1, 0.147, 0.198, 0.256, 0.3175, 0.387, 0.467, 0.557, 0.659, 0.779,
        0.922, 1.09, 1.3, 1.56, 1.94, 2.51, 2.97, 3.7, 4.48, 5.86, 8.15, 10.8, 15.2, 26.8, 1_020.0,
    ],
    burst_share: 0.37,
    burst_jobs: 40.0,
    sizes: &[
        (1, 51.84),
        (2, 5.546),
        (3, 0.1612),
        (4, 7.258),
        (5, 0.07821),
        (6, 0.1644),
        (7, 0.1971),
        (8, 24.73),
        (12, 0.003192),
        (14, 0.004788),
        (16, 4.159),
        (24, 0.8994),
        (32, 2.717),
        (40, 0.2865),
        (48, 0.2538),
        (56, 0.1756),
        (64, 0.233),
        (72, 0.07662),
        (80, 0.15),
        (88, 0.03272),
        (96, 0.05906),
        (104, 0.05108),
        (112, 0.0407),
        (120, 0.1508),
        (128, 0.3751),
        (136, 0.03751),
        (144, 0.03432),
        (152, 0.09417),
        (160, 0.1812),
        (168, 0.002394),
        (200, 0.00399),
    ],
    classes: &[
        Class {
            up_to: 1,
            run_times: [
                1.0, 1.0, 2.0, 6.0, 17.0, 32.0, 45.0, 67.0, 89.0, 108.0, 129.0, 156.0, 190.0, 241.0, 312.0, 449.0,
                682.0, 1_181.0, 2_039.0, 3_076.0, 8_448.0, 15_670.0, 33_440.0, 48_840.0, 95_100.0, 172_800.0,
                172_800.0, 172_800.0, 172_800.0, 172_800.0,
            ],
        },
        Class {
            up_to: 4,
            run_times: [
                1.0, 1.0, 2.0, 6.0, 15.0, 28.0, 43.0, 63.0, 85.0, 103.0, 125.0, 153.0, 193.0, 239.0, 337.0, 531.6,
                953.0, 1_862.0, 5_088.0, 16_740.0, 44_630.0, 77_070.0, 123_700.0, 172_800.0, 172_800.0, 172_800.0,
                172_800.0, 172_800.0, 172_800.0, 172_800.0,
            ],
        },
        Class {
            up_to: 8,
            run_times: [
                1.0, 1.0, 2.0, 8.0, 26.0, 47.0, 71.0, 98.0, 123.0, 145.0, 166.0, 189.0, 216.0, 282.0, 383.0, 581.0,
                748.0, 1_156.0, 2_494.0, 6_054.0, 26_150.0, 42_580.0, 66_360.0, 99_190.0, 168_700.0, 172_800.0,
                172_800.0, 172_800.0, 172_800.0, 303_200.0,
            ],
        },
        Class {
            up_to: 16,
            run_times: [
                1.0, 1.0, 2.0, 6.0, 20.0, 42.0, 69.0, 105.0, 152.0, 193.0, 242.0, 297.0, 420.0, 609.0, 986.0, 2_019.0,
                4_941.0, 12_260.0, 20_900.0, 39_630.0, 62_570.0, 85_280.0, 115_000.0, 166_600.0, 172_800.0, 172_800.0,
                172_800.0, 172_800.0, 172_800.0, 378_100.0,
            ],
        },
        Class {
            up_to: 32,
            run_times: [
                1.0, 1.0, 4.0, 8.55, 11.0, 29.0, 47.0, 67.0, 69.0, 82.0, 111.0, 167.0, 213.0, 294.1, 407.6, 558.0,
                876.4, 1_763.0, 5_147.0, 17_810.0, 56_960.0, 86_790.0, 141_400.0, 172_800.0, 172_800.0, 172_800.0,
                172_800.0, 172_800.0, 172_800.0, 567_300.0,
            ],
        },
        Class {
            up_to: u32::MAX,
            run_times: [
                1.0, 1.06, 4.0, 5.0, 5.0, 5.0, 8.0, 12.0, 26.0, 50.0, 69.0, 93.7, 131.0, 183.0, 217.0, 287.9, 356.2,
                481.0, 747.8, 1_388.0, 4_127.0, 9_175.0, 31_240.0, 55_590.0, 137_900.0, 172_800.0, 172_800.0,
                172_800.0, 311_900.0, 373_400.0,
            ],
        },
    ],
    tenants: Tenants::Zipf(100),
    tenant_stays: 0.76,
    repeats: 0.305,
    alike: 0.38,
    outcomes: Some(Outcomes { cancelled: (0.1196, 1.965), failed: (0.331, -0.6403) }),
};

/// All of it from the sample, so that the rhythm is that of one task of twelve. The number of tenants is as in the paper, not
/// checked; how often they stay is ours.
pub(crate) const PAI: Figures = Figures {
    name: "pai",
    summary: "Alibaba PAI 2020 (NSDI 2022)",
    caveats: &[
        "sizes are GPUs of a task, parts of a GPU rounded up to one; run times are cut at 48 h",
        "the rhythm is that of a sample of one task in twelve; the number of tenants and their activity are ours",
        "no failures: the sample has tasks that ended well only",
    ],
    gpus: 6742,
    jobs_per_day: 11500.0,
    hours: [
        0.63, 0.828, 0.917, 0.968, 1.21, 0.931, 0.841, 1.18, 1.29, 1.06, 1.0, 1.01, 1.11, 1.04, 1.14, 1.14, 0.952,
        0.933, 0.872, 0.686, 0.704, 1.49, 1.09, 0.985,
    ],
    weekdays: [1.12, 1.03, 1.06, 1.11, 1.0, 0.829, 0.843],
    day_deviation: 0.27,
    day_memory: 0.46,
    same_moment: 0.0476,
    gaps: [
        0.00201, 0.00961, 0.012, 0.0182, 0.0385, 0.0661, 0.104, 0.152, 0.211, 0.281, 0.361, 0.455, 0.561, 0.68, 0.816,
        0.977, 1.17, 1.41, 1.71, 2.1, 2.68, 3.1, 3.69, 4.24, 5.14, 6.26, 7.51, 9.44, 13.2, 25.6,
    ],
    burst_share: 0.27,
    burst_jobs: 5.0,
    sizes: &[
        (1, 77.08),
        (2, 3.081),
        (3, 1.505),
        (4, 1.414),
        (5, 1.71),
        (6, 0.2448),
        (7, 0.05162),
        (8, 1.197),
        (9, 0.04163),
        (10, 4.018),
        (11, 0.02331),
        (12, 0.8026),
        (15, 0.423),
        (16, 0.9242),
        (18, 0.08159),
        (20, 2.131),
        (24, 0.03996),
        (25, 0.6311),
        (27, 0.07327),
        (28, 0.09991),
        (29, 0.02831),
        (30, 0.9292),
        (32, 0.1116),
        (35, 0.01665),
        (36, 0.09325),
        (37, 0.02664),
        (40, 0.7027),
        (43, 0.01665),
        (48, 0.05828),
        (50, 1.439),
        (60, 0.1732),
        (64, 0.1082),
        (70, 0.01665),
        (80, 0.1832),
        (90, 0.01166),
        (100, 0.373),
        (140, 0.02664),
        (150, 0.0333),
        (200, 0.05662),
        (400, 0.02165),
    ],
    classes: &[
        Class {
            up_to: 1,
            run_times: [
                5.0, 18.0, 23.0, 25.0, 35.0, 47.0, 64.0, 94.0, 149.0, 216.0, 267.0, 344.0, 467.0, 668.0, 924.0,
                1_342.0, 2_031.0, 3_186.0, 4_617.0, 6_840.0, 10_790.0, 14_090.0, 20_170.0, 26_440.0, 42_720.0,
                58_460.0, 95_070.0, 139_800.0, 172_800.0, 172_800.0,
            ],
        },
        Class {
            up_to: 4,
            run_times: [
                6.0, 24.0, 34.0, 45.0, 57.0, 75.0, 104.0, 153.0, 191.0, 252.0, 363.0, 459.9, 538.0, 718.0, 979.8,
                1_293.0, 1_744.0, 2_632.0, 3_765.0, 6_027.0, 11_260.0, 18_560.0, 31_590.0, 42_590.0, 61_750.0,
                98_890.0, 136_500.0, 172_800.0, 172_800.0, 172_800.0,
            ],
        },
        Class {
            up_to: 8,
            run_times: [
                27.0, 46.23, 55.0, 66.0, 81.0, 104.0, 131.0, 190.0, 274.0, 374.0, 549.2, 892.1, 1_370.0, 1_968.0,
                2_969.0, 3_928.0, 5_099.0, 6_353.0, 8_699.0, 12_990.0, 19_380.0, 26_110.0, 39_960.0, 56_420.0,
                90_260.0, 146_900.0, 172_800.0, 172_800.0, 172_800.0, 172_800.0,
            ],
        },
        Class {
            up_to: 20,
            run_times: [
                29.0, 59.0, 77.0, 103.0, 154.0, 198.0, 257.0, 324.0, 418.0, 591.0, 809.0, 1_062.0, 1_333.0, 1_605.0,
                1_921.0, 2_522.0, 3_511.0, 4_908.0, 6_675.0, 10_590.0, 16_530.0, 21_290.0, 27_920.0, 32_440.0,
                47_270.0, 73_410.0, 92_490.0, 172_800.0, 172_800.0, 172_800.0,
            ],
        },
        Class {
            up_to: 50,
            run_times: [
                33.0, 53.0, 75.2, 139.6, 271.6, 427.4, 680.2, 971.0, 1_238.0, 1_573.0, 1_959.0, 2_506.0, 3_184.0,
                3_816.0, 4_272.0, 5_171.0, 6_271.0, 7_607.0, 9_729.0, 12_970.0, 18_950.0, 25_420.0, 36_170.0, 42_910.0,
                56_070.0, 81_550.0, 134_400.0, 172_800.0, 172_800.0, 172_800.0,
            ],
        },
        Class {
            up_to: u32::MAX,
            run_times: [
                18.0, 24.0, 27.0, 30.0, 99.0, 371.5, 686.0, 1_014.0, 1_301.0, 1_747.0, 2_169.0, 2_752.0, 3_726.0,
                5_156.0, 6_713.0, 9_864.0, 12_800.0, 15_650.0, 19_500.0, 22_880.0, 35_870.0, 47_180.0, 59_740.0,
                64_820.0, 76_040.0, 103_100.0, 161_300.0, 172_800.0, 172_800.0, 172_800.0,
            ],
        },
    ],
    tenants: Tenants::Zipf(1300),
    tenant_stays: 0.3,
    repeats: 0.094,
    alike: 0.87,
    outcomes: None,
};

/// The Seren cluster. Sizes and run times from its curves; run times by size such that sizes have the published shares of GPU
/// time (1.4, 1.0, 9.6, 15.7, 28.7 and 43.7 %) while all jobs together keep their curve. Outcomes as published: 49.7 %
/// completed, 7.5 % cancelled, 42.9 % failed, with 21, 66 and 12 % of GPU time.
pub(crate) const ACME: Figures = Figures {
    name: "acme",
    summary: "Shanghai AI Lab Acme, cluster Seren, 2023 (NSDI 2024)",
    caveats: &[
        "when jobs arrive and how they repeat is taken from Helios Venus: nothing is published for Acme",
        "the number of tenants and their activity are ours",
    ],
    gpus: 2288,
    jobs_per_day: 3600.0,
    hours: VENUS.hours,
    weekdays: VENUS.weekdays,
    day_deviation: VENUS.day_deviation,
    day_memory: VENUS.day_memory,
    same_moment: VENUS.same_moment,
    gaps: VENUS.gaps,
    burst_share: 0.37,
    burst_jobs: 40.0,
    sizes: &[
        (1, 54.04),
        (2, 11.39),
        (4, 2.52),
        (8, 28.8),
        (16, 1.11),
        (32, 0.96),
        (48, 0.07),
        (64, 0.43),
        (128, 0.23),
        (256, 0.18),
        (512, 0.13),
        (768, 0.08),
        (1024, 0.06),
    ],
    classes: &[
        Class {
            up_to: 1,
            run_times: [
                1.0, 1.0, 1.0, 2.85, 5.616, 8.671, 11.38, 14.98, 21.54, 31.92, 58.83, 81.81, 109.0, 140.3, 172.6,
                213.0, 265.2, 346.0, 453.5, 649.8, 1_006.0, 1_483.0, 2_368.0, 3_569.0, 7_216.0, 18_110.0, 35_010.0,
                72_860.0, 222_800.0, 875_400.0,
            ],
        },
        Class {
            up_to: 4,
            run_times: [
                1.0, 1.0, 1.54, 3.498, 6.608, 9.727, 13.07, 18.21, 27.47, 47.6, 74.67, 99.79, 131.8, 161.7, 198.4,
                243.6, 310.2, 399.9, 518.1, 768.6, 1_250.0, 1_793.0, 2_972.0, 4_398.0, 9_630.0, 23_530.0, 44_830.0,
                95_690.0, 261_600.0, 959_400.0,
            ],
        },
        Class {
            up_to: 8,
            run_times: [
                1.0,
                1.0,
                2.282,
                4.362,
                8.234,
                11.52,
                15.98,
                24.94,
                42.73,
                72.04,
                97.13,
                129.7,
                159.1,
                194.8,
                237.7,
                297.8,
                378.2,
                478.8,
                660.7,
                940.4,
                1_640.0,
                2_353.0,
                3_846.0,
                6_455.0,
                14_520.0,
                31_090.0,
                57_970.0,
                126_100.0,
                357_100.0,
                1_044_000.0,
            ],
        },
        Class {
            up_to: 64,
            run_times: [
                1.0,
                4.163,
                7.884,
                12.25,
                27.96,
                71.44,
                111.3,
                152.3,
                193.9,
                240.9,
                302.4,
                376.5,
                459.7,
                573.9,
                740.8,
                934.6,
                1_269.0,
                1_786.0,
                2_688.0,
                4_204.0,
                9_294.0,
                16_060.0,
                28_860.0,
                44_760.0,
                79_570.0,
                167_900.0,
                301_900.0,
                516_900.0,
                1_002_000.0,
                1_198_000.0,
            ],
        },
        Class {
            up_to: 256,
            run_times: [
                1.0,
                6.867,
                11.97,
                23.44,
                80.94,
                137.8,
                188.9,
                245.2,
                318.6,
                402.6,
                493.3,
                635.7,
                808.2,
                998.2,
                1_365.0,
                1_829.0,
                2_574.0,
                3_674.0,
                6_035.0,
                11_500.0,
                24_770.0,
                36_660.0,
                59_850.0,
                95_100.0,
                181_700.0,
                344_200.0,
                516_000.0,
                905_800.0,
                1_144_000.0,
                1_207_000.0,
            ],
        },
        Class {
            up_to: u32::MAX,
            run_times: [
                1.0,
                4.583,
                8.621,
                13.71,
                35.35,
                83.34,
                129.7,
                170.2,
                216.1,
                269.7,
                340.8,
                420.7,
                508.7,
                660.6,
                839.2,
                1_055.0,
                1_496.0,
                2_043.0,
                3_182.0,
                5_353.0,
                12_040.0,
                20_060.0,
                33_700.0,
                52_580.0,
                97_660.0,
                201_400.0,
                358_100.0,
                608_800.0,
                1_048_000.0,
                1_201_000.0,
            ],
        },
    ],
    tenants: Tenants::Zipf(100),
    tenant_stays: 0.76,
    repeats: 0.305,
    alike: 0.38,
    outcomes: Some(Outcomes { cancelled: (9.804e-10, 22.7), failed: (1.31, -0.8983) }),
};
