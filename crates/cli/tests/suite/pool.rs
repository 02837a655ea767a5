//! `tidepool pool`: what it makes, shows, finds, refuses and gives up.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

fn pool(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidepool")).current_dir(folder).arg("pool").args(arguments).output().unwrap()
}

/// What it says when all is well.
fn said(folder: &Path, arguments: &[&str]) -> String {
    let output = pool(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What it says when it refuses.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = pool(folder, arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// Lines with one blank between words.
fn rows(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_pool_is_made_shown_checked_and_destroyed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let create = ["create", "file:pool", "--size", "8MB", "--device", "file:more,size=4MB", "--label", "orders"];
    let made = said(folder, &[&create[..], &["--database", "a", "--database", "b,quota=4MB"]].concat());
    assert_eq!(made, said(folder, &["list", "file:pool"]));
    for expected in ["0 file:pool 8 MB 0 to 3 open", "1 file:more 4 MB 4 to 5 open", "1 b live 0 0 4 MB", "free 4 8 MB"]
    {
        assert!(rows(&made).iter().any(|row| row == expected), "{expected:?} is missing from {made}");
    }
    assert!(made.starts_with("Pool \"orders\" in file:pool, made "), "{made}");
    assert!(refused(folder, &create).contains("is device 0 of a pool already"));
    let checked = said(folder, &["check", "file:pool", "--deep"]);
    assert!(checked.contains(", 0 faults, "), "{checked}");
    let events = rows(&said(folder, &["events", "file:pool", "--limit", "3"]));
    assert_eq!(events.len(), 4, "{events:?}");
    assert!(events[3].contains("host left"), "{events:?}");
    assert!(said(folder, &["finalize", "file:pool"]).contains("nothing to do"));
    assert!(refused(folder, &["list", "file:more"]).contains("Name its first device"));
    let made = said(folder, &["add", "file:pool", "file:third,size=4MB"]);
    assert!(rows(&made).iter().any(|row| row == "2 file:third 4 MB 6 to 7 open"), "{made}");

    // A tablespace does not take it for memory of its own.
    let tablespace = Command::new(env!("CARGO_BIN_EXE_tidepool"))
        .current_dir(folder)
        .args(["sql", "--data", "data", "--far", "file:pool,size=8MB", "--command", "select 1"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&tablespace.stderr);
    assert!(!tablespace.status.success() && error.contains("format version 2"), "{error}");
    assert_eq!(made, said(folder, &["list", "file:pool"]), "nothing of it was changed");

    said(folder, &["destroy", "file:pool", "--keep-files"]);
    assert!(refused(folder, &["list", "file:pool"]).contains("there is no pool in"));
    said(folder, &["create", "file:pool"]);
    assert!(said(folder, &["destroy", "file:pool"]).contains("destroyed"));
    assert!(!folder.join("pool").exists());
}

#[test]
fn damage_and_absence_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    said(folder, &["create", "file:pool", "--size", "8MB", "--device", "file:more,size=4MB"]);
    std::fs::rename(folder.join("more"), folder.join("away")).unwrap();
    let output = pool(folder, &["check", "file:pool"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && shown.contains("device \"file:more\" is missing"), "{shown}");
    assert!(said(folder, &["list", "file:pool"]).contains("missing: could not open"));
    std::fs::rename(folder.join("away"), folder.join("more")).unwrap();
    said(folder, &["check", "file:pool"]);

    // The first host's word.
    let file = std::fs::OpenOptions::new().read(true).write(true).open(folder.join("pool")).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, 73_728).unwrap();
    file.write_at(&[byte[0] ^ 4], 73_728).unwrap();
    let output = pool(folder, &["check", "file:pool"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && shown.contains("fault: IDENT of slot 0 is damaged"), "{shown}");
    assert!(refused(folder, &["list", "file:pool"]).contains("tidepool pool check"));
    assert!(refused(folder, &["forget", "file:pool", "nobody"]).contains("are damaged"));
    file.write_at(&byte, 73_728).unwrap();
    assert!(refused(folder, &["forget", "file:pool", "nobody"]).contains("host \"nobody\" does not exist"));
}

#[test]
fn what_cannot_be_a_pool_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(refused(folder, &["list", "file:nowhere"]).contains("could not open"));
    assert!(refused(folder, &["create", "anon:", "--size", "8MB"]).contains("several processes cannot share"));
    assert!(refused(folder, &["create", "file:pool", "--size", "1MB"]).contains("is too small for a pool"));
    assert!(refused(folder, &["create", "file:pool", "--size", "8MB", "--extent", "3MB"]).contains("power of two"));
    assert!(refused(folder, &["create", "file:pool"]).contains("could not open"));
    assert!(!folder.join("pool").exists(), "what was made in vain is removed");
    let help = said(folder, &["--help"]);
    for command in ["create", "list", "add", "check", "events", "forget", "finalize", "destroy"] {
        assert!(help.contains(command), "{command} is missing from {help}");
    }
}
