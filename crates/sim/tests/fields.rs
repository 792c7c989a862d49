//! Every field of the types means something: for each there is a history whose end changes when the field does.

use std::sync::Arc;

use cluster::{
    BatchRange, Bytes, ClaimId, ClusterDraft, Count, Ends, Grain, Invalid, JobDraft, KindDraft, MigProfile, NodeDraft,
    NodeId, QueueDraft, QueueId, Recovery, Role, Scaling, Slice, Span, Time, Weight, WorkerRange,
};
use engine::Settings;
use perf::{Curve, Interference, Rates, ScalingLaw, Speed, TrueJob, Truth};
use plan::{Outcome, Phase};
use policies::PolicyConfig;
use sim::{Setup, simulate};
use world::{Circumstances, Faults, Occurrence, Script};

/// A small history: a cluster, some jobs, what befalls them.
struct History {
    draft: ClusterDraft,
    jobs: Vec<TrueJob>,
    circumstances: Circumstances,
    policy: PolicyConfig,
}

impl History {
    fn on(cluster: &str) -> History {
        let draft = ClusterDraft::parse_short(cluster).unwrap();
        let policy = PolicyConfig::named("fifo");
        History { draft, jobs: Vec::new(), circumstances: Circumstances::default(), policy }
    }

    fn under(mut self, policy: &str, parameters: &[&str]) -> History {
        self.policy = PolicyConfig::from_pairs(policy, parameters).unwrap();
        self
    }

    fn cluster(mut self, change: impl FnOnce(&mut ClusterDraft)) -> History {
        change(&mut self.draft);
        self
    }

    fn queues(self, queues: &[QueueDraft]) -> History {
        self.cluster(|draft| draft.queues = queues.to_vec())
    }

    fn befallen_by(mut self, change: impl FnOnce(&mut Circumstances)) -> History {
        change(&mut self.circumstances);
        self
    }

    /// A job submitted at a second that takes so many with the gang it asks for.
    fn job(self, at: u64, draft: JobDraft, takes: u64) -> History {
        self.true_job(at, draft, Truth::lasting(Span::from_secs(takes)))
    }

    fn true_job(mut self, at: u64, draft: JobDraft, truth: Truth) -> History {
        let speed = Arc::new(truth.speed.clone());
        let spec = Arc::new(draft.build().unwrap());
        self.jobs.push(TrueJob { submitted: Time::from_secs(at), spec, speed, truth: Arc::new(truth) });
        self
    }

    /// When each job ended, in seconds, in order of submission; what became of it instead if it did not finish.
    fn ends(&self) -> Vec<String> {
        let (cluster, queues) = self.draft.build().unwrap();
        let settings = Settings { whole_checks: true, ..Settings::default() };
        let circumstances = self.circumstances.clone();
        let setup = Setup { circumstances, settings, ..Setup::new(cluster, queues, self.jobs.clone()) };
        let mut troubles = Vec::new();
        let state = simulate(&setup, &self.policy.name, self.policy.build().unwrap(), |_, event| {
            if let engine::Event::PlanRefused { why } = event {
                troubles.push(why.to_string());
            }
        });
        assert_eq!(troubles, [] as [&str; 0]);
        let end = |phase: &Phase| match phase {
            Phase::Ended { at, outcome: Outcome::Finished } => format!("{}", at.as_secs_f64()),
            Phase::Ended { outcome, .. } => format!("{outcome:?}"),
            other => format!("{other:?}"),
        };
        state.unwrap().books().claims().iter().map(|claim| end(&claim.phase)).collect()
    }

    #[track_caller]
    fn check(&self, expected: &[&str]) {
        assert_eq!(self.ends(), expected);
    }
}

fn rigid(workers: u32) -> JobDraft {
    JobDraft::rigid("job", workers)
}

fn sliced(grain: Grain, memory: Bytes) -> JobDraft {
    let slice = Some(Slice { grain, count: 1, memory });
    JobDraft { roles: vec![Role { slice, ..Role::worker() }], ..rigid(1) }
}

fn half() -> JobDraft {
    let memory = Bytes::gib(4);
    sliced(Grain::Share { thousandths: 500, memory }, memory)
}

fn worker(change: impl FnOnce(&mut Role)) -> JobDraft {
    let mut role = Role::worker();
    change(&mut role);
    JobDraft { roles: vec![role], ..rigid(1) }
}

#[test]
fn slices_let_two_jobs_share_a_gpu_at_their_share_of_its_speed() {
    History::on("1x1").job(0, rigid(1), 100).job(0, rigid(1), 100).check(&["100", "200"]);
    History::on("1x1").job(0, half(), 100).job(0, half(), 100).check(&["200", "200"]);
}

#[test]
fn mig_instances_share_only_a_gpu_that_can_be_cut() {
    let seventh = || sliced(Grain::Mig(MigProfile::G7), Bytes::ZERO);
    let three = || sliced(Grain::Mig(MigProfile::G3), Bytes::ZERO);
    History::on("1x1 a100").job(0, three(), 30).job(0, three(), 30).check(&["70.094", "70.094"]);
    History::on("1x1 a100").job(0, seventh(), 30).job(0, seventh(), 30).check(&["30", "60"]);
    History::on("1x1 t4").job(0, three(), 30).check(&["Refused"]);
}

#[test]
fn a_task_with_several_slices_needs_them_on_one_node() {
    let pair = || worker(|role| role.slice = Some(Slice { grain: Grain::Whole, count: 2, memory: Bytes::ZERO }));
    // Cores keep the first two jobs on different nodes, so that one GPU is left on each.
    let lone = || worker(|role| role.millicores = 40_000);
    let history = |last| History::on("2x2").job(0, lone(), 50).job(0, lone(), 50).job(0, last, 10);
    history(rigid(2)).check(&["50", "50", "10"]);
    history(pair()).check(&["50", "50", "60"]);
}

#[test]
fn device_memory_decides_which_gpu_will_do() {
    let large = sliced(Grain::Whole, Bytes::gib(30));
    History::on("1x1 t4").job(0, large.clone(), 10).check(&["Refused"]);
    History::on("1x1 a100").job(0, large, 10).check(&["10"]);
}

#[test]
fn device_memory_limits_how_many_share() {
    let share = |gib| {
        let memory = Bytes::gib(gib);
        sliced(Grain::Share { thousandths: 250, memory }, memory)
    };
    History::on("1x1 t4").job(0, share(8), 10).job(0, share(8), 10).check(&["40", "40"]);
    History::on("1x1 t4").job(0, share(9), 10).job(0, share(9), 10).check(&["40", "80"]);
}

#[test]
fn cores_and_main_memory_run_out_like_gpus() {
    let cores = |millicores| worker(|role| role.millicores = millicores);
    let history = |draft: JobDraft| History::on("1x2").job(0, draft.clone(), 10).job(0, draft, 10);
    history(cores(32_000)).check(&["10", "10"]);
    history(cores(33_000)).check(&["10", "20"]);
    let memory = |gib| worker(|role| role.memory = Bytes::gib(gib));
    history(memory(256)).check(&["10", "10"]);
    history(memory(257)).check(&["10", "20"]);
    history(memory(257)).cluster(|draft| draft.nodes[0].memory_gb = 1024.0).check(&["10", "10"]);
    history(cores(33_000)).cluster(|draft| draft.nodes[0].cores = 96.0).check(&["10", "10"]);
}

/// A job of four workers that exchanges 125 MB after every one of its iterations, of a second each.
fn chatty() -> (JobDraft, Truth) {
    let rates = Rates::Anywhere(1.0);
    let speed = Speed { rates, gradients: Bytes::new(125_000_000), ..Speed::constant(1.0) };
    let truth = Truth { speed, iterations: 100, start_up: Span::ZERO, course: None, resize: None };
    (rigid(4), truth)
}

#[test]
fn a_job_across_nodes_runs_at_the_speed_of_the_network() {
    let (job, truth) = chatty();
    let apart = |gbps: f64| {
        let history = History::on("2x2").true_job(0, job.clone(), truth.clone());
        history.cluster(|draft| draft.nodes[0].network_gbps = gbps)
    };
    History::on("1x4").true_job(0, job.clone(), truth.clone()).check(&["100"]);
    apart(1.0).check(&["200"]);
    apart(10.0).check(&["110"]);
}

#[test]
fn topology_decides_how_wide_the_network_between_two_nodes_is() {
    let (job, truth) = chatty();
    let apart = |rack: &str, switch: &str| {
        let history = History::on("1x2, 1x2").true_job(0, job.clone(), truth.clone());
        history.cluster(|draft| {
            draft.nodes.iter_mut().for_each(|node| node.network_gbps = 1.0);
            draft.nodes[1].rack = rack.into();
            draft.nodes[1].switch = switch.into();
            draft.uplinks.rack_oversubscription = 2.0;
            draft.uplinks.switch_oversubscription = 2.0;
        })
    };
    apart("rack0", "switch0").check(&["200"]);
    apart("rack1", "switch0").check(&["300"]);
    apart("rack1", "switch1").check(&["500"]);
}

#[test]
fn a_gang_prefers_one_rack() {
    let (job, truth) = chatty();
    // Nodes a-0 and c-0 share a rack; b-0 stands elsewhere.
    let history = History::on("1x2, 1x2, 1x2").true_job(0, job, truth).cluster(|draft| {
        draft.nodes.iter_mut().for_each(|node| node.network_gbps = 1.0);
        draft.nodes[1].rack = "far".into();
        draft.uplinks.rack_oversubscription = 4.0;
    });
    history.check(&["200"]);
}

#[test]
fn parameter_servers_are_part_of_the_gang() {
    let with_servers = |millicores, count| {
        let server = Role { name: "server".into(), count, slice: None, millicores, memory: Bytes::ZERO };
        JobDraft { roles: vec![Role::worker(), server], ..rigid(2) }
    };
    let history = |draft: JobDraft| History::on("1x4").job(0, draft.clone(), 10).job(0, draft, 10);
    history(with_servers(32_000, Count::Fixed(1))).check(&["10", "10"]);
    history(with_servers(32_000, Count::Fixed(2))).check(&["10", "20"]);
    history(with_servers(32_000, Count::OnePer(2))).check(&["10", "10"]);
    history(with_servers(32_000, Count::Scaled)).check(&["10", "20"]);
}

#[test]
fn a_whole_cpu_cluster_can_be_said() {
    let job = |millicores| JobDraft {
        scaling: Scaling::Rigid(6),
        ..worker(|role| {
            role.slice = None;
            role.millicores = millicores;
        })
    };
    let cluster = |draft: &mut ClusterDraft| draft.nodes[0].cores = 20.0;
    let history =
        |millicores| History::on("7x0").job(0, job(millicores), 10).job(0, job(millicores), 10).cluster(cluster);
    history(10_000).check(&["10", "10"]);
    history(12_000).check(&["10", "20"]);
    history(21_000).check(&["Refused", "Refused"]);
}

#[test]
fn a_job_waits_for_those_it_depends_on() {
    let after = |after: Vec<u32>| JobDraft { after: after.into_iter().map(ClaimId).collect(), ..rigid(1) };
    let history = |second| History::on("1x4").job(0, rigid(1), 100).job(0, second, 10);
    history(after(vec![])).check(&["100", "10"]);
    history(after(vec![0])).check(&["100", "110"]);
    let huge = History::on("1x4").job(0, rigid(5), 100).job(0, after(vec![0]), 10);
    huge.check(&["Refused", "Refused"]);
}

fn lab_and_firm(change: impl FnOnce(&mut QueueDraft, &mut QueueDraft)) -> Vec<QueueDraft> {
    let mut lab = QueueDraft { guarantee: 2.0, ..QueueDraft::named("lab") };
    let mut firm = QueueDraft { guarantee: 2.0, ..QueueDraft::named("firm") };
    change(&mut lab, &mut firm);
    vec![lab, firm]
}

/// Three jobs of the firm, and ten seconds later two of the lab, on four GPUs.
fn shared(queues: &[QueueDraft]) -> History {
    let job = |queue| JobDraft { queue: QueueId(queue), ..rigid(1) };
    let firm = (0..4).fold(History::on("1x4").queues(queues), |history, _| history.job(0, job(2), 100));
    firm.job(10, job(1), 100).job(10, job(1), 100)
}

#[test]
fn a_guarantee_is_lent_and_called_back() {
    let called_back = shared(&lab_and_firm(|_, _| {}));
    called_back.check(&["100", "100", "190", "190", "110", "110"]);
    let kept = shared(&lab_and_firm(|lab, _| lab.lends = false));
    kept.check(&["100", "100", "200", "200", "110", "110"]);
    let without = shared(&lab_and_firm(|lab, _| lab.guarantee = 0.0));
    assert_ne!(without.ends()[4..], ["110", "110"], "nothing to call back: {:?}", without.ends());
}

#[test]
fn what_is_not_lent_or_borrowed_stays_idle() {
    let firm_only = |queues: Vec<QueueDraft>| {
        let job = |queue| JobDraft { queue: QueueId(queue), ..rigid(1) };
        (0..4).fold(History::on("1x4").queues(&queues), |history, _| history.job(0, job(2), 100))
    };
    firm_only(lab_and_firm(|_, _| {})).check(&["100", "100", "100", "100"]);
    firm_only(lab_and_firm(|lab, _| lab.lends = false)).check(&["100", "100", "200", "200"]);
    firm_only(lab_and_firm(|_, firm| firm.borrows = false)).check(&["100", "100", "200", "200"]);
    firm_only(lab_and_firm(|_, firm| firm.limit = Some(3.0))).check(&["100", "100", "100", "200"]);
}

#[test]
fn spare_gpus_are_shared_by_the_weight_of_queues() {
    let history = |weight| {
        let queues = [QueueDraft { weight, ..QueueDraft::named("a") }, QueueDraft::named("b")];
        let job = |queue| JobDraft { queue: QueueId(queue), ..rigid(1) };
        let a = (0..4).fold(History::on("1x4").queues(&queues), |history, _| history.job(0, job(1), 100));
        (0..4).fold(a, |history, _| history.job(0, job(2), 100))
    };
    history(1.0).check(&["100", "100", "200", "200", "100", "100", "200", "200"]);
    history(3.0).check(&["100", "100", "100", "200", "100", "200", "200", "200"]);
}

#[test]
fn a_child_queue_is_bound_by_its_parent() {
    let child = |parent: Option<&str>| QueueDraft { parent: parent.map(Into::into), ..QueueDraft::named("child") };
    let history = |parent| {
        let queues = [QueueDraft { limit: Some(1.0), ..QueueDraft::named("lab") }, child(parent)];
        let job = || JobDraft { queue: QueueId(2), ..rigid(1) };
        History::on("1x2").queues(&queues).job(0, job(), 10).job(0, job(), 10)
    };
    history(None).check(&["10", "10"]);
    history(Some("lab")).check(&["10", "20"]);
}

#[test]
fn a_lost_node_costs_what_was_not_saved() {
    let faults = Faults { node_mtbf_s: Some(100.0), node_repair_s: 50.0, ..Faults::default() };
    let job = |every| JobDraft { recovery: Recovery { checkpoint_every: every, ..Recovery::default() }, ..rigid(1) };
    let history =
        |every, faults| History::on("1x1").job(0, job(every), 300).befallen_by(|befalls| befalls.faults = faults);
    let secs = |history: History| history.ends()[0].parse::<f64>().unwrap();
    let undisturbed = secs(history(None, Faults::default()));
    let saved = secs(history(Some(Span::from_secs(10)), faults));
    let unsaved = secs(history(None, faults));
    assert!(undisturbed < saved && saved < unsaved, "{undisturbed} < {saved} < {unsaved}");
}

#[test]
fn a_failed_gpu_is_avoided_until_it_is_repaired() {
    let faults = |repair| Faults { gpu_mtbf_s: Some(200.0), gpu_repair_s: repair, ..Faults::default() };
    let history =
        |repair| History::on("1x1").job(0, rigid(1), 150).befallen_by(|befalls| befalls.faults = faults(repair));
    let secs = |history: History| history.ends()[0].parse::<f64>().unwrap();
    let (quick, slow) = (secs(history(1.0)), secs(history(1000.0)));
    assert!(150.0 < quick && quick < slow, "{quick} < {slow}");
}

#[test]
fn a_job_that_crashes_too_often_is_given_up() {
    let faults = Faults { crash_mtbf_s: Some(50.0), ..Faults::default() };
    let job = |retries| JobDraft { recovery: Recovery { retries, ..Recovery::default() }, ..rigid(1) };
    let history = |retries| History::on("1x1").job(0, job(retries), 150).befallen_by(|befalls| befalls.faults = faults);
    history(0).check(&["GivenUp"]);
    assert!(history(1000).ends()[0].parse::<f64>().unwrap() > 150.0);
}

#[test]
fn a_job_that_holds_devices_for_as_long_as_it_may_is_ended() {
    let job = |limit| JobDraft { limit, ..rigid(1) };
    let history = |limit| History::on("1x1").job(0, job(limit), 100).job(0, rigid(1), 10);
    history(None).check(&["100", "110"]);
    history(Some(Span::from_secs(60))).check(&["TimedOut", "70"]);
}

#[test]
fn a_limit_counts_all_runs_and_no_waiting() {
    let held = |script: Script| {
        let job = JobDraft { limit: Some(Span::from_secs(100)), ..rigid(1) };
        History::on("1x1").job(0, job, 90).befallen_by(|befalls| befalls.script = script)
    };
    let stops = Script::default()
        .then(Time::from_secs(50), Occurrence::Hold(0))
        .then(Time::from_secs(500), Occurrence::Release(0));
    held(Script::default()).check(&["90"]);
    held(stops).check(&["540"]);
}

#[test]
fn a_held_job_gives_its_devices_to_others_until_it_is_released() {
    let history = |script: Script| {
        let history = History::on("1x1").job(0, rigid(1), 100).job(0, rigid(1), 10);
        history.befallen_by(|befalls| befalls.script = script)
    };
    let (hold, release) = ((Time::from_secs(20), Occurrence::Hold(0)), (Time::from_secs(60), Occurrence::Release(0)));
    history(Script::default()).check(&["100", "110"]);
    history(Script::default().then(hold.0, hold.1).then(release.0, release.1)).check(&["140", "30"]);
}

#[test]
fn a_job_whose_priority_is_raised_goes_first() {
    let history = |script: Script| {
        let history = History::on("1x1").job(0, rigid(1), 10).job(0, rigid(1), 10).job(0, rigid(1), 10);
        history.befallen_by(|befalls| befalls.script = script)
    };
    history(Script::default()).check(&["10", "20", "30"]);
    let raised = Script::default().then(Time::from_secs(5), Occurrence::Reprioritise(2, 7));
    history(raised).check(&["10", "30", "20"]);
}

#[test]
fn a_cordoned_node_keeps_its_jobs_and_takes_no_more() {
    let history = |occurrence| {
        let history = History::on("2x1").job(0, rigid(1), 30).job(5, rigid(1), 10).job(5, rigid(1), 10);
        history.befallen_by(|befalls| befalls.script = Script::default().then(Time::from_secs(1), occurrence))
    };
    history(Occurrence::Reopen(NodeId(0))).check(&["30", "15", "25"]);
    history(Occurrence::Cordon(NodeId(0))).check(&["30", "15", "25"]);
    history(Occurrence::Cordon(NodeId(1))).check(&["30", "40", "50"]);
}

#[test]
fn a_job_that_cannot_be_interrupted_is_not_stopped_for_others() {
    let long = |interruptible| JobDraft { interruptible, ..rigid(1) };
    let policies: [(&str, &[&str]); 3] = [("tiresias", &[]), ("las", &[]), ("sia", &["others=tiresias"])];
    for (policy, parameters) in policies {
        let history = |interruptible| {
            let history = History::on("1x1").job(0, long(interruptible), 10_000).job(5000, rigid(1), 10);
            history.under(policy, parameters)
        };
        let ends = |interruptible| history(interruptible).ends()[1].parse::<f64>().unwrap();
        assert!(ends(true) < 6000.0, "{policy}: the newcomer takes its place");
        assert!(ends(false) > 10_000.0, "{policy}: the newcomer waits");
    }
}

#[test]
fn a_gang_that_hangs_at_the_start_is_tried_again_after_the_deadline() {
    let faults = Faults { start_hangs: 0.9, ..Faults::default() };
    let job = JobDraft { recovery: Recovery { retries: 1000, ..Recovery::default() }, ..rigid(1) };
    let history = History::on("1x1").job(0, job, 10).befallen_by(|befalls| befalls.faults = faults);
    let end = history.ends()[0].parse::<u64>().unwrap();
    assert!(end > 600 && end % 600 == 10, "some deadlines of ten minutes, then ten seconds: {end}");
}

#[test]
fn the_seed_decides_what_fails_when() {
    let faults = Faults { crash_mtbf_s: Some(50.0), ..Faults::default() };
    let history = |seed| {
        let history = History::on("1x1").job(
            0,
            JobDraft { recovery: Recovery { retries: 1000, ..Recovery::default() }, ..rigid(1) },
            100,
        );
        history.befallen_by(|befalls| {
            befalls.faults = faults;
            befalls.seed = seed;
        })
    };
    assert_eq!(history(1).ends(), history(1).ends());
    assert_ne!(history(1).ends(), history(2).ends());
}

#[test]
fn restarts_and_checkpoints_cost_time() {
    let recovery = |checkpoint, restart| Recovery {
        checkpoint_cost: Span::from_secs(checkpoint),
        restart_cost: Span::from_secs(restart),
        ..Recovery::default()
    };
    // The second job is shorter and preempts the first under shortest remaining time first.
    let history = |recovery| {
        let long = JobDraft { recovery, ..rigid(1) };
        History::on("1x1").under("srtf", &[]).job(0, long, 100).job(10, rigid(1), 20)
    };
    history(recovery(0, 0)).check(&["120", "30"]);
    history(recovery(5, 0)).check(&["125", "35"]);
    history(recovery(0, 7)).check(&["127", "30"]);
    // Longer than the grace period of five minutes: killed, and everything since the launch is lost.
    history(recovery(301, 0)).check(&["430", "330"]);
}

#[test]
fn starting_takes_its_time() {
    let truth = |start_up| Truth { start_up: Span::from_secs(start_up), ..Truth::lasting(Span::from_secs(100)) };
    History::on("1x1").true_job(0, rigid(1), truth(0)).check(&["100"]);
    History::on("1x1").true_job(0, rigid(1), truth(30)).check(&["130"]);
}

#[test]
fn periodic_checkpoints_slow_a_job_down() {
    let recovery = Recovery {
        checkpoint_every: Some(Span::from_secs(9)),
        checkpoint_cost: Span::from_secs(1),
        ..Recovery::default()
    };
    History::on("1x1").job(0, JobDraft { recovery, ..rigid(1) }, 90).check(&["100"]);
}

#[test]
fn neighbours_on_a_gpu_and_on_a_node_slow_each_other_down() {
    let interference = |same_gpu, same_node| Interference { same_gpu, same_node };
    let on_gpu = |interference| {
        let history = History::on("1x1").job(0, half(), 100).job(0, half(), 50);
        history.befallen_by(|befalls| befalls.interference = interference)
    };
    on_gpu(interference(0.0, 0.0)).check(&["200", "100"]);
    on_gpu(interference(0.5, 0.0)).check(&["250", "150"]);
    on_gpu(interference(0.0, 0.5)).check(&["200", "100"]);
    let on_node = |interference| {
        let history = History::on("1x2").job(0, rigid(1), 100).job(0, rigid(1), 50);
        history.befallen_by(|befalls| befalls.interference = interference)
    };
    on_node(interference(0.0, 0.5)).check(&["125", "75"]);
}

#[test]
fn nodes_come_and_go() {
    let two = || History::on("2x1").job(0, rigid(1), 100).job(0, rigid(1), 100);
    let at = Time::from_secs;
    two().check(&["100", "100"]);
    let drained = |script: Script| two().befallen_by(|befalls| befalls.script = script);
    drained(Script::default().then(at(50), Occurrence::Drain(NodeId(1)))).check(&["100", "150"]);
    let reopened =
        Script::default().then(at(50), Occurrence::Drain(NodeId(1))).then(at(60), Occurrence::Reopen(NodeId(1)));
    drained(reopened).check(&["100", "110"]);
    drained(Script::default().then(at(50), Occurrence::Remove(NodeId(1)))).check(&["100", "200"]);
    let waiting = || two().job(0, rigid(1), 100);
    let node =
        || Box::new(NodeDraft { name: "new".into(), kind: Some("fast".into()), gpus: 1, ..NodeDraft::default() });
    let added = Occurrence::Add { node: node(), kinds: vec![KindDraft::well_known("fast")] };
    waiting().check(&["100", "100", "200"]);
    waiting()
        .befallen_by(|befalls| befalls.script = Script::default().then(at(30), added))
        .check(&["100", "100", "130"]);
    drained(Script::default().then(at(30), Occurrence::Cancel(1))).check(&["100", "Cancelled"]);
}

#[test]
fn how_a_job_ends_decides_when() {
    let curves = [Curve { metric: "loss".into(), floor: 0.5, scale: 2.0, pace: 0.01 }];
    let end = |ends: Ends| {
        let iterations = Truth::iterations_of(&ends, 70, &curves).unwrap();
        let truth = Truth { speed: Speed::constant(1.0), iterations, start_up: Span::ZERO, course: None, resize: None };
        History::on("1x1").true_job(0, JobDraft { ends, ..rigid(1) }, truth).ends()[0].clone()
    };
    let metric = || "loss".into();
    assert_eq!(end(Ends::Itself), "70");
    assert_eq!(end(Ends::Iterations(80)), "80");
    assert_eq!(end(Ends::Epochs { epochs: 3, iterations_each: 30 }), "90");
    assert_eq!(end(Ends::Target { metric: metric(), value: 1.5, at_most: 1000 }), "100");
    assert_eq!(end(Ends::Target { metric: metric(), value: 1.5, at_most: 60 }), "60");
    let converged = |decline| Ends::Converged { metric: metric(), decline, window: 50, at_most: 10_000 };
    assert!(end(converged(0.05)).parse::<f64>().unwrap() < end(converged(0.01)).parse::<f64>().unwrap());
}

#[test]
fn priority_weight_and_deadline_decide_who_comes_first() {
    let two = |first: JobDraft, second: JobDraft| {
        History::on("1x1").job(0, rigid(1), 10).job(1, first, 10).job(2, second, 10)
    };
    two(rigid(1), rigid(1)).check(&["10", "20", "30"]);
    two(rigid(1), JobDraft { priority: 1, ..rigid(1) }).check(&["10", "30", "20"]);
    let urgent = || JobDraft { deadline: Some(Time::from_secs(25)), ..rigid(1) };
    two(rigid(1), urgent()).under("composed", &["order=deadline"]).check(&["10", "30", "20"]);
    let heavy = || JobDraft { weight: Weight::from_f64(3.0).unwrap(), ..rigid(1) };
    // Both run in turns of a minute; the heavier one gets more turns and is done first.
    let turns = |draft: JobDraft| {
        History::on("1x1").under("las", &["round=1m"]).job(0, rigid(1), 600).job(0, draft, 600).ends()
    };
    let (plain, weighted) = (turns(rigid(1)), turns(heavy()));
    assert!(weighted[1].parse::<f64>().unwrap() < plain[1].parse::<f64>().unwrap(), "{plain:?} {weighted:?}");
}

#[test]
fn users_share_in_fair_order() {
    let by = |user: &str| JobDraft { user: user.into(), ..rigid(1) };
    let history = |user: &str| {
        let history = History::on("1x2").under("composed", &["order=fair"]);
        history.job(0, by("ann"), 100).job(0, by("ann"), 50).job(1, by("ann"), 10).job(2, by(user), 10)
    };
    history("ann").check(&["100", "50", "60", "70"]);
    history("bob").check(&["100", "50", "70", "60"]);
}

#[test]
fn an_estimate_opens_a_gap_to_backfill() {
    let expected = |secs| JobDraft { expected: Some(Span::from_secs(secs)), ..rigid(1) };
    let history = |mode: &str, estimate| {
        let long = JobDraft { expected: Some(Span::from_secs(100)), ..rigid(1) };
        let history = History::on("1x2").under("fifo", &[mode]).job(0, long, 100);
        history.job(1, rigid(2), 10).job(2, expected(estimate), 50)
    };
    history("backfill=none", 50).check(&["100", "110", "160"]);
    history("backfill=easy", 50).check(&["100", "110", "52"]);
    history("backfill=conservative", 50).check(&["100", "110", "52"]);
    history("backfill=easy", 200).check(&["100", "110", "160"]);
}

#[test]
fn kinds_decide_where_and_how_fast() {
    let (cluster, _) = ClusterDraft::parse_short("1x1 t4, 1x1 a100").unwrap().build().unwrap();
    let kind = |name| cluster.kind_named(name).unwrap();
    let rates = Rates::ByKind(vec![(kind("t4"), 1.0), (kind("a100"), 4.0)]);
    let truth = Truth {
        speed: Speed { rates, ..Speed::constant(1.0) },
        iterations: 100,
        start_up: Span::ZERO,
        course: None,
        resize: None,
    };
    let history = |kinds| History::on("1x1 t4, 1x1 a100").true_job(0, JobDraft { kinds, ..rigid(1) }, truth.clone());
    history(vec![]).check(&["25"]);
    history(vec![kind("t4")]).check(&["100"]);
}

#[test]
fn skew_decides_whether_a_job_may_be_scattered() {
    let history = |skew| {
        let job = JobDraft { skew: Some(skew), ..rigid(2) };
        History::on("2x2")
            .under("tiresias", &[])
            .job(0, rigid(1), 100)
            .job(0, rigid(1), 100)
            .job(1, job, 10)
            .cluster(|draft| draft.nodes[0].cores = 1.0)
    };
    // One core a node keeps the first two jobs apart, so that one GPU is left on each.
    let one_core = |mut history: History| {
        for job in &mut history.jobs[..2] {
            let mut draft = JobDraft::from((*job.spec).clone());
            draft.roles[0].millicores = 600;
            job.spec = Arc::new(draft.build().unwrap());
        }
        history
    };
    one_core(history(0)).check(&["100", "100", "11"]);
    one_core(history(900)).check(&["100", "100", "110"]);
}

fn growing(range: WorkerRange, batch: Option<BatchRange>, noise_scale: Option<f64>) -> (JobDraft, Truth) {
    let speed = Speed { scaling: ScalingLaw::Linear, noise_scale, ..Speed::constant(1.0) };
    let truth = Truth { speed, iterations: 100, start_up: Span::ZERO, course: None, resize: None };
    let scaling = batch.map_or(Scaling::Elastic(range), |batch| Scaling::Adaptive(range, batch));
    (JobDraft { scaling, ..rigid(1) }, truth)
}

#[test]
fn an_elastic_job_grows_into_what_is_free() {
    let history = |max| {
        let (draft, truth) = growing(WorkerRange { min: 1, max }, None, None);
        History::on("1x4").under("composed", &["grant=grow"]).true_job(0, draft, truth)
    };
    history(1).check(&["100"]);
    history(2).check(&["50"]);
    history(4).check(&["25"]);
}

#[test]
fn what_a_job_asks_for_is_what_it_gets_where_nobody_chooses() {
    let history = |policy, parameters: &[&str], asked| {
        let (draft, truth) = growing(WorkerRange { min: 1, max: 4 }, None, None);
        History::on("1x8").under(policy, parameters).true_job(0, JobDraft { asked, ..draft }, truth)
    };
    for policy in ["fifo", "tiresias"] {
        history(policy, &[], None).check(&["100"]);
        history(policy, &[], Some(2)).check(&["50"]);
        history(policy, &[], Some(4)).check(&["25"]);
    }
    history("composed", &["grant=grow"], Some(2)).check(&["25"]);
}

#[test]
fn an_adaptive_job_pays_for_a_larger_batch_in_efficiency() {
    let range = WorkerRange { min: 1, max: 4 };
    let end = |max, noise| {
        let (draft, truth) = growing(range, Some(BatchRange { initial: 100, max }), Some(noise));
        let history = History::on("1x4").under("composed", &["grant=grow"]).true_job(0, draft, truth);
        history.ends()[0].parse::<f64>().unwrap()
    };
    assert_eq!(end(100, 300.0), 25.0, "the batch stays");
    // Four times the batch at efficiency (300 + 100) / (300 + 400).
    assert_eq!(end(400, 300.0), 43.75);
    assert!(end(400, 30_000.0) < 26.0, "noisy gradients: a large batch costs little");
}

#[test]
fn figures_that_cannot_be_are_refused() {
    let (cluster, queues) = ClusterDraft::parse_short("1x1").unwrap().build().unwrap();
    let faults = Faults { crash_mtbf_s: Some(-1.0), ..Faults::default() };
    let circumstances = Circumstances { faults, ..Circumstances::default() };
    let setup = Setup { circumstances, ..Setup::new(cluster, queues, Vec::new()) };
    let policy = PolicyConfig::named("fifo").build().unwrap();
    let refused: Invalid = simulate(&setup, "fifo", policy, |_, _| {}).unwrap_err();
    assert_eq!(refused.to_string(), "faults.crash_mtbf_s: expected at least 1 second, found -1");
}
