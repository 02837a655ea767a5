//! `tidepool bench` at a tiny scale: the placements agree, and what it writes is what it says.

use serde_json::Value;
use std::process::Command;

#[test]
fn placements_agree_and_the_report_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args(["bench", "tpch", "--sf", "0.01", "--placement", "all", "--repeat", "1", "--streams", "2"])
        .args(["--near", "1GB", "--far", "anon:,size=1GB", "--results"])
        .arg(folder.path().join("results"))
        .arg("--report")
        .arg(folder.path().join("report"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let json = std::fs::read_to_string(folder.path().join("report/result.json")).unwrap();
    let result: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(result["schema"], "tidepool-bench/1");
    assert_eq!(result["load"]["tables"].as_array().unwrap().len(), 8);
    let rows = |table: &str| {
        let tables = result["load"]["tables"].as_array().unwrap();
        tables.iter().find(|facts| facts["name"] == table).unwrap()["rows"].as_u64().unwrap()
    };
    assert_eq!(rows("orders"), 15_000);
    assert_eq!(rows("nation"), 25);
    let placements = result["placements"].as_array().unwrap();
    assert_eq!(placements.len(), 4);
    for placement in placements {
        let expected = if placement["name"] == "both-near" { "reference" } else { "agrees" };
        let queries = placement["queries"].as_array().unwrap();
        assert_eq!(queries.len(), 22);
        for query in queries {
            assert_eq!(query["answer"]["answer"], expected, "{} {}", placement["name"], query["name"]);
        }
        assert!(placement["throughput"]["queries_per_hour"].as_f64().unwrap() > 0.0);
        // Where the heap is, is where it says.
        let heap_far = placement["name"] == "heap-far" || placement["name"] == "both-far";
        let peak: u64 = queries
            .iter()
            .flat_map(|query| query["heap"].as_array().unwrap())
            .filter(|heap| (heap["tablespace"] == "far") == heap_far)
            .map(|heap| heap["bytes_peak"].as_u64().unwrap())
            .sum();
        assert!(peak > 0, "{}", placement["name"]);
    }
    // Q1's four groups and the header.
    let q1 = std::fs::read_to_string(folder.path().join("results/q1.csv")).unwrap();
    assert_eq!(q1.lines().count(), 5);

    let page = std::fs::read_to_string(folder.path().join("report/index.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script") && !page.contains("src=\"http"));
}

#[test]
fn nonsense_is_refused_before_anything_is_generated() {
    for (arguments, message) in [
        (["bench", "tpcd", "--sf", "1"], "there is no benchmark"),
        (["bench", "tpcc", "--sf", "2"], "TPC-C has no scale factor"),
        (["bench", "tpcc", "--warehouses", "0"], "at least one warehouse"),
        (["bench", "tpcc", "--mix", "wild"], "no mix is called"),
        (["bench", "ch", "--warehouses", "0"], "at least one warehouse"),
        (["bench", "ch", "--analytics-cores", "1023"], "no processor 1023"),
        (["bench", "ch", "--merge", "often"], "merged auto or never"),
        (["bench", "overload", "--connections", "0"], "between 1 and 20000"),
        (["bench", "overload", "--factor", "0.5"], "a factor of 1"),
        (["bench", "failover", "--connections", "0"], "between 1 and 1000"),
        (["bench", "failover", "--kills", "0"], "at least once"),
        (["bench", "failover", "--host", "127.0.0.1:1"], "needs --end-with"),
        (["bench", "tpch", "--sf", "0"], "invalid scale factor"),
        (["bench", "tpch", "--queries", "23"], "has no query"),
        (["bench", "tpch", "--placement", "nowhere"], "there is no placement"),
        (["bench", "tpch", "--profile", "nothing-like-it"], "nothing-like-it"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tidepool")).args(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(message), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_advisor_is_held_against_simpler_rules() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("advise.json");
    // One thread reads the same bytes in the same order every time.
    let output = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args(["bench", "advise", "--sf", "0.01", "--repeat", "1", "--threads", "1", "--profile", "cxl-asic"])
        .args(["--near", "1GB", "--far", "anon:,size=1GB", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let placement = |name: &str| {
        result["placements"].as_array().unwrap().iter().find(|placement| placement["name"] == name).unwrap().clone()
    };
    let number = |name: &str, field: &str| placement(name)[field].as_f64().unwrap();
    for name in ["advised", "by frequency", "largest far"] {
        assert!(number(name, "far_share") >= 0.8, "{name}");
        assert!(number(name, "stall_predicted_ms") >= number("advised", "stall_predicted_ms"), "{name}");
        assert!(number(name, "stall_predicted_ms") <= number("all far", "stall_predicted_ms"), "{name}");
        // Waits are accounted whatever the clock says; only what the link adds depends on it.
        assert!(number(name, "stall_accounted_ms") >= 0.9 * number(name, "stall_predicted_ms"), "{name}");
    }
    assert_eq!((number("all near", "far_share"), number("all near", "stall_accounted_ms")), (0.0, 0.0));
    assert_eq!(number("all far", "near_bytes"), 0.0);
    assert!(!result["statements"].as_array().unwrap().is_empty());
}

#[test]
fn disaggregation_is_measured_by_share_of_local_memory() {
    if let Err(error) = tidepool_device::paged::available() {
        tidepool_base::cannot_test(&error);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args(["bench", "disaggregation", "--sf", "0.05", "--repeat", "1", "--queries", "1,6,13", "--near", "1GB"])
        .args(["--shares", "100,20", "--profile", "rdma-56g-paging", "--report"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = std::fs::read_to_string(folder.path().join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(result["schema"], "tidepool-bench-disaggregation/1");
    let network = &result["networks"][0];
    assert!(network["touched_bytes"].as_u64().unwrap() > 1 << 20);
    assert!(network["mechanism_fault_ns"].as_u64().unwrap() > 0);
    let shares = network["shares"].as_array().unwrap();
    let fetched = |share: &Value| -> u64 {
        share["queries"].as_array().unwrap().iter().map(|point| point["paging"]["fetched"].as_u64().unwrap()).sum()
    };
    assert_eq!(shares.len(), 2);
    // How many more depends on how often the engine comes back to what it has read.
    assert!(5 * fetched(&shares[1]) > 6 * fetched(&shares[0]), "{shares:?}");
    for share in shares {
        assert!(share["slowdown_network"].as_f64().unwrap() <= share["slowdown"].as_f64().unwrap());
    }
    let page = std::fs::read_to_string(folder.path().join("index.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("18 ×") && !page.contains("<script"));
}

#[test]
fn analytics_beside_transactions_are_right_and_fresh() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args(["bench", "ch", "--warehouses", "1", "--seconds", "1", "--repeat", "1", "--streams", "2"])
        .args(["--near", "3GB", "--report"])
        .arg(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let json = std::fs::read_to_string(folder.path().join("result.json")).expect(&told);
    let result: Value = serde_json::from_str(&json).unwrap();
    let answers = result["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 22);
    for answer in answers {
        assert_eq!(answer["agrees"], true, "{answer}");
    }
    // Two answers that have no rows agree, whatever the query does.
    let empty: Vec<_> = answers.iter().filter(|answer| answer["rows"] == 0).map(|answer| &answer["query"]).collect();
    assert!(empty.len() <= 3, "no rows of {empty:?}");
    assert!(result["freshness"]["snapshots"].as_u64().unwrap() > 0);
    assert_eq!(result["freshness"]["stale"], 0, "{}", result["freshness"]);
    assert_eq!(result["breaches"].as_array().unwrap().len(), 0, "{}", result["breaches"]);
    let round = &result["rounds"][0];
    for phase in ["transactions_alone", "transactions_beside"] {
        assert!(round[phase]["transactions"].as_u64().unwrap() > 0, "{phase}");
    }
    assert!(round["queries_beside"].as_u64().unwrap() > 0);
    assert!(output.status.success(), "{told}");
    let report = std::fs::read_to_string(folder.path().join("report.md")).unwrap();
    assert!(report.contains("TPC-C's consistency conditions held"), "{report}");
}

#[test]
fn overload_is_bounded_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("overload.json");
    let output = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args([
            "bench",
            "overload",
            "--connections",
            "64",
            "--factor",
            "5",
            "--seconds",
            "1",
            "--near",
            "512MB",
            "--json",
        ])
        .arg(&json)
        .env("TIDEPOOL_TRANSACTIONS", "running_max=4,queued_max=16,queue_timeout=200ms")
        .current_dir(&folder)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let result: Value = serde_json::from_str(&std::fs::read_to_string(&json).expect(&told)).unwrap();
    assert_eq!((&result["running_max"], &result["queued_max"]), (&Value::from(4), &Value::from(16)));
    assert_eq!(result["lost"], 0);
    let overload = &result["overload"];
    assert_eq!(overload["failed"], serde_json::json!({}));
    assert!(overload["queued_most"].as_i64().unwrap() <= 16, "{overload}");
    assert!(overload["committed"].as_u64().unwrap() > 0, "{overload}");
    assert!(overload["refused"].as_u64().unwrap() > 0, "{overload}");
    assert!(output.status.success(), "{told}");
}

/// A new pool of 512 MB in a folder.
fn new_pool(folder: &std::path::Path) -> String {
    let pool = format!("file:{}", folder.join("pool").display());
    let create = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args(["pool", "create", &pool, "--size", "512MB"])
        .output()
        .unwrap();
    assert!(create.status.success(), "{}", String::from_utf8_lossy(&create.stderr));
    pool
}

#[test]
fn a_benchmark_leases_far_memory_from_a_pool() {
    let folder = tempfile::tempdir().unwrap();
    let pool = new_pool(folder.path());
    let json = folder.path().join("tpch.json");
    let output = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args(["bench", "tpch", "--sf", "0.01", "--placement", "both-far", "--profile", "none", "--repeat", "1"])
        .args(["--near", "256MB", "--far", "pool:,size=400MB", "--json"])
        .arg(&json)
        .env("TIDEPOOL_POOL", &pool)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let spaces = result["tablespaces"].as_array().unwrap();
    assert!(spaces.iter().any(|space| space["name"] == "far" && space["location"] == "pool:"), "{result}");
    let events = Command::new(env!("CARGO_BIN_EXE_tidepool")).args(["pool", "events", &pool]).output().unwrap();
    let events = String::from_utf8(events.stdout).unwrap();
    assert!(events.contains("host joined"), "{events}");
    let check = Command::new(env!("CARGO_BIN_EXE_tidepool")).args(["pool", "check", &pool]).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

#[test]
fn clients_of_a_killed_host_go_on_at_another() {
    let folder = tempfile::tempdir().unwrap();
    let pool = new_pool(folder.path());
    let json = folder.path().join("failover.json");
    let output = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args(["bench", "failover", "--kills", "3", "--connections", "4", "--near", "256MB", "--pool", &pool, "--json"])
        .arg(&json)
        .current_dir(&folder)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let result: Value = serde_json::from_str(&std::fs::read_to_string(&json).expect(&told)).unwrap();
    let kills = result["kills"].as_array().unwrap();
    assert_eq!(kills.len(), 3);
    assert!(
        kills.iter().all(|times| times.as_array().unwrap().len() == 4),
        "each client went on after each kill: {result}"
    );
    assert_eq!((&result["lost"], &result["invented"]), (&Value::from(0), &Value::from(0)), "{result}");
    assert!(result["acknowledged"].as_u64().unwrap() > 0);
    assert!(output.status.success(), "{told}");
}

/// The far-memory study, with two instances that are processes of their own, and the expander study.
#[test]
fn the_studies_of_far_memory_are_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| -> serde_json::Value {
        let json = dir.path().join("result.json");
        let output = Command::new(env!("CARGO_BIN_EXE_tidepool"))
            .args(arguments)
            .args(["--repeat", "1", "--streams", "2", "--seconds", "0.2", "--warehouses", "1", "--scale-link", "2/56"])
            .args(["--near", "1GB", "--far", "anon:,size=1GB", "--json"])
            .arg(&json)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
    };
    let traffic =
        |point: &serde_json::Value| point["link_read"].as_f64().unwrap() + point["link_written"].as_f64().unwrap();
    let lines = |lines: &serde_json::Value, points: usize| -> Vec<(String, f64)> {
        let lines = lines.as_array().unwrap().iter().map(|line| {
            let all = line["points"].as_array().unwrap();
            assert_eq!(all.len(), points, "{line}");
            (line["title"].as_str().unwrap().to_owned(), all.iter().map(traffic).sum())
        });
        lines.collect()
    };

    let study = run(&["bench", "placement", "--sf", "0.01", "--profile", "fpga-prototype"]);
    let oltp = lines(&study["oltp"][0]["lines"], 4);
    assert_eq!(oltp.len(), 4);
    // So few transactions may run where others take the processors that caches hold all that one of the lines has far.
    let (near, far): (Vec<_>, Vec<_>) = oltp.iter().partition(|(title, _)| title.ends_with("Both DRAM"));
    assert!(near.len() == 1 && near[0].1 == 0.0, "{oltp:?}");
    assert!(far.iter().any(|(_, traffic)| *traffic > 0.0), "{oltp:?}");
    assert!(study["i_config"][0]["profile"].as_str().unwrap().contains("of its link"), "{}", study["i_config"]);
    let y_config = &study["y_config"][0];
    for part in ["heap_far_separate", "main_far_separate", "heap_far_concurrent", "main_far_concurrent"] {
        let points = y_config[part].as_array().unwrap();
        assert_eq!(points.len(), 2, "{part}");
        assert!(points.iter().all(|point| point["queries_per_hour"].as_f64().unwrap() > 0.0 && traffic(point) > 0.0));
    }

    let study = run(&["bench", "expander", "--sf", "0.01", "--queries", "3,7,42"]);
    assert_eq!(lines(&study["tpcc"], 3).len(), 4);
    let tpcds = lines(&study["tpcds"], 2);
    assert!(tpcds[0].1 == 0.0 && tpcds[1..].iter().all(|(_, traffic)| *traffic > 0.0), "{tpcds:?}");
}

/// So few rows that a sum that is divided by may be 0: two queries may end with that.
#[test]
fn every_query_of_tpc_ds_runs() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("result.json");
    let output = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .args(["bench", "tpcds", "--sf", "0.01", "--repeat", "1", "--near", "1GB", "--far", "anon:,size=1GB", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let result: Value = serde_json::from_str(&std::fs::read_to_string(json).expect(&told)).unwrap();
    let queries = result["placements"][0]["queries"].as_array().unwrap();
    assert_eq!(queries.len(), 99);
    for query in queries {
        let divides = ["q12", "q90"].contains(&query["name"].as_str().unwrap())
            && query["answer"]["answer_detail"] == "22012: division by zero";
        assert!(divides || query["median_ms"].is_f64(), "{query}");
    }
}
