//! `tidepool device`: what it measures, what it writes, and what it leaves alone.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn device(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidepool")).current_dir(folder).arg("device").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_paced_device_is_measured_reported_and_saved() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tidepool.toml"), "[settings]\nthreads = 2\n").unwrap();
    let location = "anon:,profile=rdma-56g";
    let probe = ["probe", "--location", location, "--size-max", "8MB", "--rounds", "1", "--threads", "2"];
    let output = device(folder.path(), &[&probe[..], &["--report", "report", "--save", "mine"]].concat());
    // One round beside other tests may contradict itself: then nothing is saved, and that is said.
    let saved = output.status.success();
    assert!(saved || text(&output.stderr).contains("Measure again"), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for expected in
        ["paced as rdma-56g", "dependent loads, ns", "loads in flight over 8 MB", "streams, GB/s", "deviation"]
    {
        assert!(shown.contains(expected), "{expected:?} is missing from {shown}");
    }

    let result: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("report/result.json")).unwrap()).unwrap();
    assert_eq!(result["schema"], "tidepool-probe/1");
    let measured = &result["devices"][0]["measured"];
    let loads = measured["dependent_loads"].as_array().unwrap();
    assert_eq!(loads.last().unwrap()["working_set_bytes"], 8 << 20);
    assert!(loads.iter().all(|loads| loads["ns"]["median"].as_f64().unwrap() > 0.0));
    let streams: Vec<&str> =
        measured["bandwidth"].as_array().unwrap().iter().map(|found| found["stream"].as_str().unwrap()).collect();
    for stream in ["read", "write", "streamed write", "3:1", "2:1", "1:1"] {
        assert!(streams.contains(&stream), "{stream} is missing from {streams:?}");
    }
    assert!(measured["paced"].as_array().unwrap().iter().any(|paced| paced["profile"].as_f64().unwrap() > 1199.0));
    let page = std::fs::read_to_string(folder.path().join("report/index.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script") && !page.contains("src=\"http"));

    let list = device(folder.path(), &["list"]);
    assert!(list.status.success(), "{}", text(&list.stderr));
    assert_eq!(text(&list.stdout).contains("mine: measured at anon: on"), saved, "{}", text(&list.stdout));
    if saved {
        let again = device(folder.path(), &[&probe[..], &["--save", "mine"]].concat());
        assert!(text(&again.stderr).contains("profile \"mine\" exists already"), "{}", text(&again.stderr));
    }
}

#[test]
fn json_goes_to_standard_output_alone_and_files_made_to_measure_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let location = format!("file:{},size=64MB", pool.display());
    let probe =
        ["probe", "--location", &location, "--size-max", "8MB", "--rounds", "1", "--threads", "1", "--json", "-"];
    let output = device(folder.path(), &probe);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["devices"][0]["processors"].as_array().unwrap().len(), 1);
    assert!(!pool.exists());

    // What is somebody else's stays as it is.
    std::fs::write(&pool, vec![7; 64 << 20]).unwrap();
    let output = device(folder.path(), &probe);
    assert!(text(&output.stderr).contains("holds something that is not Tidepool's"), "{}", text(&output.stderr));
    assert!(std::fs::read(&pool).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn what_cannot_be_measured_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, message) in [
        (&["--location", "numa:999"][..], "NUMA node 999 does not exist"),
        (&["--location", "dax:/dev/null"], "is not a device-DAX device"),
        (&["--location", "file:/nowhere/at/all,size=64MB"], "could not open"),
        (&["--location", "anon:,size=4MB"], "too little memory"),
        (&["--location", "anon:,size=64MB", "--size-max", "1GB"], "does not fit"),
        (&["--location", "anon:,profile=unheard-of"], "\"unheard-of\" does not exist"),
        (&["--location", "anon:", "--rounds", "0"], "at least one round"),
        (&["pool"], "tablespace \"pool\" is not in the configuration"),
        (&["--save", "both"], "only one device"),
    ] {
        let output = device(folder.path(), &[&["probe"], arguments].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(message) && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
}
