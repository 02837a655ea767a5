//! Plans as JSON, YAML and XML, with the keys that PostgreSQL gives to what both have.

use super::{Actual, Shown};
use std::fmt::Write;

/// A value of the three notations.
pub enum Item {
    Text(String),
    /// Written as it is.
    Number(String),
    List(&'static str, Vec<Item>),
    Map(Vec<(String, Item)>),
}

impl Item {
    pub fn text(text: impl Into<String>) -> Item {
        Item::Text(text.into())
    }

    pub fn ms(ms: f64) -> Item {
        Item::Number(format!("{ms:.3}"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    Json,
    Yaml,
    Xml,
}

/// A plan as a document, with what is known of the whole.
pub fn document(plan: &Shown, whole: Vec<(String, Item)>, notation: Notation) -> String {
    let mut query = vec![("Plan".to_owned(), node(plan, None))];
    query.extend(whole);
    let mut out = String::new();
    match notation {
        Notation::Json => json(&Item::List("", vec![Item::Map(query)]), 0, &mut out),
        Notation::Yaml => yaml(&Item::List("", vec![Item::Map(query)]), 0, &mut out),
        Notation::Xml => {
            out.push_str("<explain xmlns=\"http://www.postgresql.org/2009/explain\">\n");
            xml("Query", &Item::Map(query), 1, &mut out);
            out.push_str("</explain>");
        }
    }
    out
}

fn node(shown: &Shown, relationship: Option<&str>) -> Item {
    let mut keys = Vec::new();
    let mut put = |key: &str, item: Item| keys.push((key.to_owned(), item));
    let (kind, details) = match shown.label.split_once(": ") {
        Some((kind, details)) => (kind, Some(details)),
        None => (shown.label.as_str(), None),
    };
    // `Aggregate by …` is an aggregate.
    let (kind, by) = match kind.split_once(" by ") {
        Some((kind, by)) => (kind, Some(by)),
        None => (kind, None),
    };
    put("Node Type", Item::text(kind));
    let join = kind.strip_suffix(" join").or_else(|| kind.strip_suffix(" Join"));
    if let Some(join) = join {
        put("Join Type", Item::text(join));
    }
    if let Some(relationship) = relationship {
        put("Parent Relationship", Item::text(relationship));
    }
    let by = by.map(|by| format!("by {by}"));
    let details: Vec<&str> = by.as_deref().into_iter().chain(details).collect();
    if !details.is_empty() {
        put("Description", Item::text(details.join(": ")));
    }
    if let Some((rows, width)) = shown.expected {
        put("Plan Rows", Item::Number(rows.to_string()));
        if let Some(width) = width {
            put("Plan Width", Item::Number(width.to_string()));
        }
    }
    match shown.actual {
        Actual::Ran { ms, rows } => {
            if let Some(ms) = ms {
                put("Actual Total Time", Item::ms(ms));
            }
            if let Some(rows) = rows {
                put("Actual Rows", Item::Number(rows.to_string()));
            }
            put("Actual Loops", Item::Number("1".to_owned()));
        }
        Actual::Never => put("Actual Loops", Item::Number("0".to_owned())),
        Actual::Unknown => {}
    }
    if !shown.output.is_empty() {
        put("Output", Item::List("Item", shown.output.iter().map(Item::text).collect()));
    }
    let mut notes = Vec::new();
    for detail in &shown.details {
        match detail.split_once(": ") {
            Some((key, value)) => put(key, Item::text(value)),
            None => notes.push(Item::text(detail)),
        }
    }
    if !notes.is_empty() {
        keys.push(("Notes".to_owned(), Item::List("Note", notes)));
    }
    if !shown.children.is_empty() {
        let children = shown.children.iter().enumerate();
        let children = children.map(|(place, child)| {
            let relationship = if join.is_some() && place > 0 { "Inner" } else { "Outer" };
            node(child, Some(relationship))
        });
        keys.push(("Plans".to_owned(), Item::List("Plan", children.collect())));
    }
    Item::Map(unique(keys))
}

/// Keys that come again are told apart by numbers: readers of JSON keep one of a name.
fn unique(keys: Vec<(String, Item)>) -> Vec<(String, Item)> {
    let mut kept: Vec<(String, Item)> = Vec::with_capacity(keys.len());
    for (key, item) in keys {
        let mut name = key.clone();
        let mut count = 1;
        while kept.iter().any(|(other, _)| *other == name) {
            count += 1;
            name = format!("{key} {count}");
        }
        kept.push((name, item));
    }
    kept
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn json(item: &Item, depth: usize, out: &mut String) {
    let margin = |depth: usize| "  ".repeat(depth);
    match item {
        Item::Text(text) => out.push_str(&quoted(text)),
        Item::Number(number) => out.push_str(number),
        Item::List(_, items) => {
            // Lists of texts stand in one line.
            if items.iter().all(|item| matches!(item, Item::Text(_))) {
                let items: Vec<String> = items.iter().map(inline).collect();
                let _ = write!(out, "[{}]", items.join(", "));
                return;
            }
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                out.push_str(if place == 0 { "\n" } else { ",\n" });
                out.push_str(&margin(depth + 1));
                json(item, depth + 1, out);
            }
            let _ = write!(out, "\n{}]", margin(depth));
        }
        Item::Map(keys) => {
            out.push('{');
            for (place, (key, item)) in keys.iter().enumerate() {
                out.push_str(if place == 0 { "\n" } else { ",\n" });
                let _ = write!(out, "{}{}: ", margin(depth + 1), quoted(key));
                json(item, depth + 1, out);
            }
            let _ = write!(out, "\n{}}}", margin(depth));
        }
    }
}

fn inline(item: &Item) -> String {
    let mut out = String::new();
    json(item, 0, &mut out);
    out
}

fn yaml(item: &Item, depth: usize, out: &mut String) {
    let margin = "  ".repeat(depth);
    match item {
        Item::Text(_) | Item::Number(_) => out.push_str(&inline(item)),
        Item::List(_, items) => {
            for (place, item) in items.iter().enumerate() {
                if place > 0 || depth > 0 {
                    out.push('\n');
                    out.push_str(&margin);
                }
                out.push_str("- ");
                yaml(item, depth + 1, out);
            }
        }
        Item::Map(keys) => {
            for (place, (key, item)) in keys.iter().enumerate() {
                if place > 0 {
                    out.push('\n');
                    out.push_str(&margin);
                }
                let _ = write!(out, "{key}:");
                if !matches!(item, Item::List(..)) {
                    out.push(' ');
                }
                if matches!(item, Item::Map(_)) {
                    let _ = write!(out, "\n{}", "  ".repeat(depth + 1));
                }
                yaml(item, depth + 1, out);
            }
        }
    }
}

fn xml(name: &str, item: &Item, depth: usize, out: &mut String) {
    let margin = "  ".repeat(depth);
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    match item {
        Item::Text(text) | Item::Number(text) => {
            let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let _ = writeln!(out, "{margin}<{name}>{escaped}</{name}>");
        }
        Item::List(item_name, items) => {
            let _ = writeln!(out, "{margin}<{name}>");
            for item in items {
                xml(item_name, item, depth + 1, out);
            }
            let _ = writeln!(out, "{margin}</{name}>");
        }
        Item::Map(keys) => {
            let _ = writeln!(out, "{margin}<{name}>");
            for (key, item) in keys {
                xml(key, item, depth + 1, out);
            }
            let _ = writeln!(out, "{margin}</{name}>");
        }
    }
}
