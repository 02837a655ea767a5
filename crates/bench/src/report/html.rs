//! The page around the report's sections.

use std::fmt::Write;

pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n",
        escape(title)
    )
}

pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// Cells are HTML; the first column is on the left, the others on the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"scroll\"><table><thead><tr>");
    for cell in head {
        let _ = write!(html, "<th>{}</th>", escape(cell));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<td>{cell}</td>");
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    html
}

/// Seconds since 1970 as `2026-11-21 21:50 UTC` (the civil calendar from days, after Howard Hinnant).
pub fn utc(seconds: u64) -> String {
    let (days, rest) = ((seconds / 86_400) as i64, seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest % 3600 / 60)
}

const STYLE: &str = "
:root {
  --bg: #f6f7f9; --card: #ffffff; --ink: #14202b; --soft: #5b6b79; --line: #dfe5ea; --accent: #0f6e84;
  --s1: #3b6fb6; --s2: #1d9a8a; --s3: #e0992b; --s4: #cf4d5c; --s5: #7b61c4; --s6: #5b8c2a; --s7: #b0578d; --s8: #64748b;
  --modelled: #6d8fb0; --paper: #aab6c1; --good: #197a4b; --bad: #b3261e; --good-bg: #e3f4ea; --bad-bg: #fbe6e4; --stripe: #f9fafb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #0e151b; --card: #151e26; --ink: #e4ebf1; --soft: #93a3b1; --line: #273440; --accent: #5cc3d9;
    --s1: #6ea3ea; --s2: #3fc2b0; --s3: #f0b24f; --s4: #ef7886; --s5: #a78bfa; --s6: #8cc152; --s7: #e08bbf; --s8: #94a3b8;
    --modelled: #9db7d0; --paper: #5a6a78; --good: #6fd39b; --bad: #ff8f86; --good-bg: #15321f; --bad-bg: #3d1a18; --stripe: #18222b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
header { margin-bottom: 24px; }
.brand { margin: 0; color: var(--accent); font-weight: 650; letter-spacing: .08em; text-transform: uppercase; font-size: 13px; }
h1 { margin: 2px 0 4px; font-size: 32px; line-height: 1.2; letter-spacing: -.01em; }
h2 { margin: 0 0 4px; font-size: 19px; letter-spacing: -.005em; }
p { margin: 0 0 12px; }
.sub, .small, section > p { color: var(--soft); }
.small { font-size: 13px; margin: 8px 0 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 16px; background: none; border: 0; padding: 0; box-shadow: none; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.tile { padding: 18px 20px; }
.tile .value { margin: 0; font-size: 30px; font-weight: 650; line-height: 1.15; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tile .value small { font-size: 16px; font-weight: 500; color: var(--soft); letter-spacing: 0; }
.tile .caption { margin: 4px 0 0; color: var(--soft); font-size: 14px; }
.tile.good .value { color: var(--good); }
.tile.bad .value { color: var(--bad); }
section { padding: 22px 24px 24px; margin: 0 0 20px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 16px 28px; max-width: 1100px; }
.figures figure:only-child { max-width: 640px; }
figure { margin: 8px 0 12px; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 6px; }
svg { width: 100%; height: auto; display: block; overflow: visible; }
svg text { font: 12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .group, svg .legend { fill: var(--ink); }
svg .value-label { fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; }
.s1 { fill: var(--s1); } .s2 { fill: var(--s2); } .s3 { fill: var(--s3); } .s4 { fill: var(--s4); }
.s5 { fill: var(--s5); } .s6 { fill: var(--s6); } .s7 { fill: var(--s7); } .s8 { fill: var(--s8); }
svg polyline.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
svg .band { fill-opacity: .18; stroke: none; }
svg polyline.s1 { stroke: var(--s1); } svg polyline.s2 { stroke: var(--s2); } svg polyline.s4 { stroke: var(--s4); }
svg polyline.s3 { stroke: var(--s3); } svg polyline.s8 { stroke: var(--s8); stroke-dasharray: 4 4; }
.mark-line { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 4; }
.measured { fill: var(--accent); } .modelled { fill: var(--modelled); } .paper { fill: var(--paper); }
.doubt { border-left: 3px solid var(--bad); padding-left: .6rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line); padding: 8px 12px; white-space: nowrap; }
td { text-align: right; padding: 6px 12px; border-bottom: 1px solid var(--line); white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
tbody tr:nth-child(even) { background: var(--stripe); }
tbody tr:last-child td { border-bottom: 0; }
.delta { color: var(--soft); font-size: 12px; display: inline-block; min-width: 52px; }
.mark { font-size: 12px; padding: 1px 8px; border-radius: 999px; border: 1px solid var(--line); color: var(--soft); }
.mark.good { color: var(--good); background: var(--good-bg); border-color: transparent; }
.mark.bad { color: var(--bad); background: var(--bad-bg); border-color: transparent; }
summary { cursor: pointer; color: var(--accent); margin: 12px 0 4px; }
.columns { display: grid; grid-template-columns: 3fr 2fr; gap: 12px 36px; }
@media (max-width: 900px) { .columns, .figures { grid-template-columns: 1fr; } }
.meter { display: block; width: 180px; margin-left: auto; padding-top: 4px; }
.meter i { display: block; height: 6px; border-radius: 3px; margin-bottom: 2px; min-width: 1px; }
.meter .raw { background: var(--paper); } .meter .encoded { background: var(--accent); }
ul { margin: 8px 0 0; padding-left: 20px; color: var(--soft); } li { margin-bottom: 6px; } li b { color: var(--ink); }
code { font: 13px ui-monospace, SFMono-Regular, Menlo, monospace; }
footer { color: var(--soft); font-size: 13px; padding: 4px 4px 0; }
a { color: var(--accent); }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
";
