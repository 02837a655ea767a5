//! The documents lead somewhere: every relative link in them, and every path of a page that code, scripts or comments
//! name, is there. They list what a user meets: views with their columns, and metrics.

use crate::cli::{serve, sql};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The repository's folder.
pub fn root() -> PathBuf {
    crate::crate_folder().join("../..").canonicalize().unwrap()
}

/// Every text file of the repository, by its path from the root. What builds and tools leave there is passed over.
fn texts() -> BTreeMap<PathBuf, String> {
    let root = root();
    let mut folders = vec![root.clone()];
    let mut texts = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        // What another process takes away meanwhile was no part of the repository.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().into_string().unwrap();
            let (Ok(kind), Ok(metadata)) = (entry.file_type(), entry.metadata()) else { continue };
            if kind.is_dir() {
                let ours = !name.starts_with('.') || name == ".ci" || name == ".cargo";
                let made = name.starts_with("target") || name.starts_with("tidepool-data") || name == "report";
                if ours && !made {
                    folders.push(entry.path());
                }
            } else if kind.is_file()
                && metadata.len() < 1 << 20
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                texts.insert(entry.path().strip_prefix(&root).unwrap().to_owned(), text);
            }
        }
    }
    texts
}

/// The lines of a page that are not in a block of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The level of a line that is a heading, and its text.
fn heading(line: &str) -> Option<(usize, &str)> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    (level > 0 && text.starts_with(' ')).then(|| (level, text.trim()))
}

/// The anchors that the headings of a page have where Markdown is shown as web pages: letters and digits in lower case,
/// with hyphens for spaces.
fn anchors(page: &str) -> BTreeSet<String> {
    let anchor = |text: &str| -> String {
        let kept = text.to_lowercase().replace(' ', "-");
        kept.chars().filter(|&c| c.is_alphanumeric() || c == '-' || c == '_').collect()
    };
    prose(page).filter_map(heading).map(|(_, text)| anchor(text)).collect()
}

/// The targets of a page's links, `](target)`.
fn links(page: &str) -> Vec<&str> {
    let mut links = Vec::new();
    for line in prose(page) {
        let mut parts = line.split("](");
        parts.next();
        links.extend(parts.filter_map(|part| part.split_once(')')).map(|(target, _)| target));
    }
    links
}

/// The paths below `docs/` that a text names.
fn named_pages(text: &str) -> Vec<&str> {
    let path = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let mut pages = Vec::new();
    for (start, _) in text.match_indices("docs/") {
        if text[..start].ends_with(path) {
            continue; // a part of a longer path or address
        }
        let end = text[start..].find(|c| !path(c)).map_or(text.len(), |length| start + length);
        pages.push(text[start..end].trim_end_matches(['.', '/']));
    }
    pages
}

/// `folder` with the steps of `target` taken from it.
fn joined(folder: &Path, target: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for step in target.split('/') {
        match step {
            "" | "." => {}
            ".." => assert!(path.pop(), "{target} leads out of the repository"),
            step => path.push(step),
        }
    }
    path
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

#[test]
fn no_link_and_no_named_page_is_missing() {
    let texts = texts();
    let mut missing = Vec::new();
    for (path, text) in &texts {
        for page in named_pages(text) {
            if !root().join(page).exists() {
                missing.push(format!("{}: {page}", path.display()));
            }
        }
        if !is_page(path) {
            continue;
        }
        for link in links(text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if target.is_empty() { path.clone() } else { joined(path.parent().unwrap(), target) };
            let there = root().join(&target).exists();
            if !there || !anchor.is_empty() && !texts.get(&target).is_some_and(|page| anchors(page).contains(anchor)) {
                missing.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "these lead nowhere:\n{}", missing.join("\n"));
}

#[test]
fn the_index_lists_every_page() {
    let index = fs::read_to_string(root().join("docs/README.md")).unwrap();
    let listed: BTreeSet<PathBuf> =
        links(&index).into_iter().map(|link| joined(Path::new("docs"), link.split('#').next().unwrap())).collect();
    let texts = texts();
    let pages = texts.keys().filter(|path| path.starts_with("docs") && is_page(path) && !path.ends_with("README.md"));
    let left_out: Vec<_> = pages.filter(|page| !listed.contains(*page)).collect();
    assert!(left_out.is_empty(), "docs/README.md does not list {left_out:?}");
}

#[test]
fn every_page_has_one_title() {
    let pages = texts().into_iter().filter(|(path, _)| is_page(path));
    let others: Vec<_> = pages
        .filter(|(_, text)| prose(text).filter_map(heading).filter(|(level, _)| *level == 1).count() != 1)
        .map(|(path, _)| path)
        .collect();
    assert!(others.is_empty(), "not exactly one heading of the first level: {others:?}");
}

/// The part of a page below a heading of the second level.
fn section<'a>(page: &'a str, title: &str) -> &'a str {
    let (_, below) = page.split_once(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("no section {title}"));
    below.split("\n## ").next().unwrap()
}

#[test]
fn every_column_of_the_views_is_described() {
    let views = fs::read_to_string(root().join("crates/planner/src/catalog/data/views.txt")).unwrap();
    let page = fs::read_to_string(root().join("docs/reference/system-views.md")).unwrap();
    for line in views.lines().filter(|line| line.starts_with("tidepool.")) {
        let mut words = line.split(' ');
        let view = section(&page, words.next().unwrap());
        for column in words.filter_map(|word| word.split_once(':')).map(|(column, _)| column) {
            assert!(view.contains(&format!("`{column}`")), "{line}: {column} is not described");
        }
    }
}

#[test]
fn every_metric_is_described() {
    let source = fs::read_to_string(root().join("crates/server/src/metrics.rs")).unwrap();
    let page = fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let names = source.split('"').filter(|text| text.starts_with("tidepool_"));
    let families = names.filter(|name| !["_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end)));
    let left_out: BTreeSet<_> = families.filter(|name| !page.contains(&format!("| `{name}` |"))).collect();
    assert!(left_out.is_empty(), "not described: {left_out:?}");
}

/// The blocks of SQL of a page, in order.
pub fn statements(page: &str) -> Vec<&str> {
    page.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Runs all SQL of a page that shows how to start a server with this far memory. Before the last block the server is
/// stopped and started again. What the last block answers.
fn follow(page: &str) -> String {
    const FAR: &str = "anon:,size=1GB,profile=cxl-asic";
    let page = fs::read_to_string(root().join(page)).unwrap();
    assert!(page.contains(&format!("tidepool serve --far '{FAR}'\n")));
    let data = tempfile::tempdir().unwrap();
    let pool = data.path().join("pool");
    let mut serving = serve(&data.path().join("data"), &["--far", FAR]);
    let mut answer = String::new();
    let blocks = statements(&page);
    for (number, block) in blocks.iter().enumerate() {
        if number + 1 == blocks.len() {
            serving.signal(libc::SIGINT);
            assert!(serving.wait().0);
            serving = serve(&data.path().join("data"), &["--far", FAR]);
        }
        let block = block.replace("/dev/shm/pool", pool.to_str().unwrap());
        let output = sql(&serving.url, &["-f", "-"], &block);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{block}\n{said}");
        answer = String::from_utf8(output.stdout).unwrap();
    }
    answer
}

#[test]
fn what_the_readme_shows_runs() {
    follow("README.md");
}

#[test]
fn the_first_steps_can_be_followed() {
    let answer = follow("docs/tutorials/first-steps.md");
    assert!(answer.contains("1000000") && answer.contains("fare"), "{answer}");
}

#[test]
fn what_is_missing_is_found() {
    let page = "# A title\n[one](b.md#two-words), [two](https://example.org/docs/c.md)\n```\n[no](d.md)\n# none\n```\n## Two *words*";
    assert_eq!(links(page), ["b.md#two-words", "https://example.org/docs/c.md"]);
    assert_eq!(anchors(page), BTreeSet::from(["a-title".to_owned(), "two-words".to_owned()]));
    assert_eq!(
        named_pages("see docs/README.md. (`docs/decisions/`) x/docs/d.md"),
        ["docs/README.md", "docs/decisions"]
    );
    assert_eq!(joined(Path::new("docs/results"), "../reference/sql.md"), Path::new("docs/reference/sql.md"));
}
