//! The jobs of Shanghai AI Laboratory's Acme clusters (Hu et al., NSDI 2024): `trace_seren.csv` and `trace_kalos.csv` as
//! published, and the small sample of Kalos.

use crate::readers::auto::Head;
pub(crate) use crate::readers::cluster_log::read;

pub(crate) const OPTIONS: &[&str] = &["states", "types", "cores", "workers"];

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let original = head.has_all(&["gpu_num", "type", "state", "submit_time"]) && !head.has("vc");
    let sample = head.has_all(&["job_id", "time", "gpus", "duration_s", "queue_s"]);
    (original || sample).then(|| format!("the header has {}", head.header()))
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines};

    const KALOS: &str = "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,\
        start_time,end_time,fail_time,stop_time,duration,queue,gpu_time\n\
        dlc1,ux,2,16,48,100.0,50.0,Pretrain,COMPLETED,2023-05-17 11:00:00+00:00,2023-05-17 11:00:10+00:00,\
        2023-05-17 11:01:10+00:00,,,60.0,10.0,960.0\n\
        dlc2,uy,1,1,8,10.0,5.0,Evaluation,FAILED,2023-05-17 19:00:30+08:00,2023-05-17 11:00:40+00:00,,\
        2023-05-17 11:00:45+00:00,,,10.0,5.0\n";

    #[test]
    fn the_trace_is_read_and_time_zones_are_respected() {
        assert_eq!(lines("acme", KALOS, ""), ["0s dlc1 ux 16 60s", "30s dlc2 uy 1 5s"]);
        assert_eq!(lines("acme", KALOS, "types=evaluation"), ["0s dlc2 uy 1 5s"]);
        assert!(assumes("acme", KALOS, "states=completed", "only jobs in these states are read: completed"));
    }

    #[test]
    fn the_sample_is_read() {
        let text = "job_id,time,gpus,duration_s,queue_s\na,2023-05-17 11:00:58+00:00,64,18.0,10.0\n";
        assert_eq!(lines("acme", text, ""), ["0s a unknown 64 18s"]);
    }

    #[test]
    fn a_bad_number_names_file_line_and_column() {
        let expected = "FILE:2: column `gpu_num`: expected a whole number from 0 to 1000000, found NaN";
        assert_eq!(fault("acme", &KALOS.replace("ux,2,16", "ux,2,NaN"), ""), expected);
        let expected = "FILE:3: column `submit_time`: expected a time like 2017-10-09 07:03:03 from 1970 to 2199, \
                        found 2323-05-17 19:00:30+08:00";
        assert_eq!(fault("acme", &KALOS.replace("2023-05-17 19", "2323-05-17 19"), ""), expected);
    }
}
