//! What PostgreSQL's clients write and DataFusion's planner does not know, turned into what it does.
//!
//! One pass over the syntax tree, innermost expressions first. An output column without an alias is named after its
//! expression as the client wrote it, so one whose expression changes gets that name as its alias.

use super::relations;
use crate::merged_columns::output_name;
use crate::names::expression_name;
use crate::walk::{names_column, walk, walk_mut};
use datafusion::sql::sqlparser::ast::*;
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::LazyLock;
use tidepool_base::{Error, SqlState};
use tidepool_heap::QueryHeap;

/// Rewrites a statement in place.
/// 54001 for one that would come to too much.
pub fn rewrite(statement: &mut Statement) -> tidepool_base::Result<()> {
    super::syntax::begin_copies();
    let mut rewriter = Rewriter::default();
    let _ = walk_mut(statement, &mut rewriter);
    if super::syntax::copied_too_much() {
        return Err(Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded")
            .with_detail("Comparisons of rows, or with all of an array, stand within what is compared."));
    }
    if let Statement::Query(query) = statement {
        show_registered(&mut query.body);
    }
    Ok(())
}

/// Rewrites an expression of its own in place.
pub fn rewrite_expression(expr: &mut Expr) {
    super::syntax::begin_copies();
    let _ = walk_mut(expr, &mut Rewriter::default());
}

/// `'t'::regclass` is an oid within a query and a name in its output.
fn show_registered(body: &mut SetExpr) {
    match body {
        SetExpr::Select(select) => {
            for item in &mut select.projection {
                if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item
                    && let Some(kind) = registered_kind(expr)
                {
                    let inner = take(expr);
                    *expr = call(&format!("{kind}_out"), vec![inner]);
                }
            }
        }
        SetExpr::SetOperation { left, right, .. } => {
            show_registered(left);
            show_registered(right);
        }
        SetExpr::Query(query) => show_registered(&mut query.body),
        _ => {}
    }
}

/// Of a column of rows, literals and NULLs without a type are of the type that the others say they are.
fn read_literals(values: &mut Values) {
    let width = values.rows.first().map_or(0, |row| row.content.len());
    for column in 0..width {
        let types: HashSet<DataType> =
            values.rows.iter().filter_map(|row| written_type(row.content.get(column)?)).collect();
        let Some(data_type) = types.iter().next().filter(|_| types.len() == 1) else { continue };
        let data_type = without_length(data_type);
        for cell in values.rows.iter_mut().filter_map(|row| row.content.get_mut(column)) {
            if matches!(cell, Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_) | Value::Null)) {
                *cell = super::syntax::cast(take(cell), data_type.clone());
            }
        }
    }
}

/// A type without what it says of its values' length or scale: that holds for what is cast to it alone.
fn without_length(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Varchar(_) | DataType::CharacterVarying(_) | DataType::CharVarying(_) => DataType::Varchar(None),
        DataType::Char(_) | DataType::Character(_) => DataType::Text,
        DataType::Numeric(_) | DataType::Decimal(_) | DataType::Dec(_) => DataType::Numeric(ExactNumberInfo::None),
        other => other.clone(),
    }
}

/// The type that an expression says it is of.
fn written_type(expr: &Expr) -> Option<DataType> {
    match expr {
        Expr::Cast { data_type, .. } => Some(data_type.clone()),
        Expr::TypedString(typed) => Some(typed.data_type.clone()),
        Expr::Interval(_) => Some(DataType::Interval { fields: None, precision: None }),
        _ => None,
    }
}

#[derive(Default)]
struct Rewriter {
    /// Whether the next query is what an `INSERT` takes its rows from.
    inserts: bool,
    /// By alias: the relation's name with its schema, if written. For `alias.tableoid`.
    aliases: HashMap<String, String>,
    /// The names that the outputs of the selects under way had before they were rewritten.
    names: Vec<Vec<Option<String>>>,
}

fn identifier(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

fn plain(name: &str) -> Ident {
    Ident::new(name)
}

pub fn call(name: &str, args: Vec<Expr>) -> Expr {
    Expr::Function(Function {
        name: ObjectName::from(vec![plain(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: args.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))).collect(),
            clauses: vec![],
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })
}

pub fn literal(value: Value) -> Expr {
    Expr::Value(value.with_empty_span())
}

pub fn text(value: impl Into<String>) -> Expr {
    literal(Value::SingleQuotedString(value.into()))
}

pub fn number(value: impl ToString) -> Expr {
    literal(Value::Number(value.to_string(), false))
}

pub fn take(expr: &mut Expr) -> Expr {
    std::mem::replace(expr, literal(Value::Null))
}

/// An identifier as SQL compares it.
fn fold(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

fn last_name(name: &ObjectName) -> Option<String> {
    name.0.last()?.as_ident().map(fold)
}

/// The function's name without `pg_catalog.`; `None` when another schema is named.
pub fn function_name(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [name] => name.as_ident().map(fold),
        [schema, name]
            if schema.as_ident().map(fold).is_some_and(|s| s == "pg_catalog" || s == "information_schema") =>
        {
            name.as_ident().map(fold)
        }
        _ => None,
    }
}

pub fn string_literal(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(ValueWithSpan {
            value: Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text),
            ..
        }) => Some(text),
        Expr::Nested(inner) => string_literal(inner),
        _ => None,
    }
}

pub fn args_of(function: &mut Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &mut function.args else { return None };
    let unnamed = |arg: &FunctionArg| matches!(arg, FunctionArg::Unnamed(FunctionArgExpr::Expr(_)));
    if !list.args.iter().all(unnamed) {
        return None;
    }
    let args = std::mem::take(&mut list.args);
    Some(
        args.into_iter()
            .filter_map(|arg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
                _ => None,
            })
            .collect(),
    )
}

/// The types whose values are oids written as names.
const REGISTERED: [&str; 10] = [
    "regclass",
    "regtype",
    "regproc",
    "regprocedure",
    "regnamespace",
    "regrole",
    "regoper",
    "regoperator",
    "regconfig",
    "regdictionary",
];

/// The functions that read and write a registered type.
fn registered_function(type_name: &str) -> &'static str {
    match type_name {
        "regclass" => "regclass",
        "regtype" => "regtype",
        "regproc" | "regprocedure" => "regproc",
        "regnamespace" => "regnamespace",
        "regrole" => "regrole",
        _ => "regoper",
    }
}

/// `regclass` and so on, when the expression is such a cast (already rewritten).
fn registered_kind(expr: &Expr) -> Option<&'static str> {
    match expr {
        Expr::Nested(inner) => registered_kind(inner),
        Expr::Function(function) => {
            let name = function_name(&function.name)?;
            match name.strip_suffix("_in") {
                Some(kind) if REGISTERED.contains(&kind) => Some(registered_function(kind)),
                _ if name == "to_regclass" => Some("regclass"),
                _ if name == "to_regtype" => Some("regtype"),
                _ if name == "to_regproc" => Some("regproc"),
                _ if name == "to_regnamespace" => Some("regnamespace"),
                _ if name == "to_regrole" => Some("regrole"),
                _ => None,
            }
        }
        _ => None,
    }
}

/// A type's name, folded and without `pg_catalog.`, when it is one that sqlparser has no keyword for.
fn custom_type(data_type: &DataType) -> Option<String> {
    match data_type {
        DataType::Regclass => Some("regclass".to_owned()),
        DataType::Custom(name, _) => function_name(name),
        _ => None,
    }
}

fn is_text_type(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Text | DataType::Varchar(_) | DataType::CharacterVarying(_))
        || custom_type(data_type).is_some_and(|name| matches!(name.as_str(), "text" | "varchar" | "name"))
}

/// Removes `pg_catalog.` from a type and reads what remains as SQL would.
fn unqualify_type(data_type: &mut DataType) {
    match data_type {
        DataType::Array(ArrayElemTypeDef::SquareBracket(element, _)) => unqualify_type(element),
        DataType::Custom(name, modifiers) if name.0.len() == 2 => {
            let Some(plain_name) = function_name(name) else { return };
            let modifiers = if modifiers.is_empty() { String::new() } else { format!("({})", modifiers.join(",")) };
            let quote = if plain_name == "char" { "\"" } else { "" };
            let sql = format!("{quote}{plain_name}{quote}{modifiers}");
            let parsed =
                Parser::new(&PostgreSqlDialect {}).try_with_sql(&sql).and_then(|mut parser| parser.parse_data_type());
            if let Ok(parsed) = parsed {
                *data_type = parsed;
            }
        }
        _ => {}
    }
}

/// The items of an array literal such as `{a,"b c",NULL}`; `None` when it is none, or nested.
pub fn array_items(text: &str) -> Option<Vec<Option<String>>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut items = Vec::new();
    if inner.trim().is_empty() {
        return Some(items);
    }
    let mut characters = inner.chars().peekable();
    loop {
        let mut item = String::new();
        let mut quoted = false;
        while characters.peek().is_some_and(|c| c.is_whitespace()) {
            characters.next();
        }
        if characters.peek() == Some(&'"') {
            quoted = true;
            characters.next();
            loop {
                match characters.next()? {
                    '"' => break,
                    '\\' => item.push(characters.next()?),
                    other => item.push(other),
                }
            }
        }
        let mut end = true;
        let mut escaped = false;
        while let Some(character) = characters.next() {
            match character {
                ',' => {
                    end = false;
                    break;
                }
                '{' | '}' => return None,
                '\\' if !quoted => {
                    item.push(characters.next()?);
                    escaped = true;
                }
                other if quoted && !other.is_whitespace() => return None,
                _ if quoted => {}
                other => item.push(other),
            }
        }
        if !quoted {
            item.truncate(item.trim_end().len());
        }
        if !quoted && item.is_empty() {
            return None;
        }
        let is_null = !quoted && !escaped && item.eq_ignore_ascii_case("null");
        items.push((!is_null).then_some(item));
        if end {
            return Some(items);
        }
    }
}

/// `x < ANY (array)` as `NOT (x >= ALL (array))`: of the two DataFusion minds only with `ALL` that what is compared may be NULL.
/// Equality with items that are spelled out stays, because it becomes `IN`.
fn any_as_all(expr: &mut Expr) {
    let Expr::AnyOp { left, compare_op, right, .. } = expr else { return };
    let opposite = match compare_op {
        BinaryOperator::Eq => BinaryOperator::NotEq,
        BinaryOperator::NotEq => BinaryOperator::Eq,
        BinaryOperator::Lt => BinaryOperator::GtEq,
        BinaryOperator::LtEq => BinaryOperator::Gt,
        BinaryOperator::Gt => BinaryOperator::LtEq,
        BinaryOperator::GtEq => BinaryOperator::Lt,
        _ => return,
    };
    let mut array = right.as_ref();
    while let Expr::Nested(inner) | Expr::Cast { expr: inner, .. } = array {
        array = inner;
    }
    let is_spelled_out = match array {
        Expr::Subquery(_) => return,
        Expr::Array(_) => !matches!(left.as_ref(), Expr::Value(_)),
        Expr::Value(_) => true,
        array => is_array_column(array),
    };
    if *compare_op == BinaryOperator::Eq && is_spelled_out {
        return;
    }
    let all = Expr::AllOp { left: Box::new(take(left)), compare_op: opposite, right: Box::new(take(right)) };
    *expr =
        Expr::Nested(Box::new(Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(Expr::Nested(Box::new(all))) }));
}

/// An array expression of what an array literal holds.
fn array_expression(items: Vec<Option<String>>) -> Expr {
    let numbers = items.iter().flatten().all(|item| item.parse::<i64>().is_ok());
    let elem = items
        .into_iter()
        .map(|item| match item {
            None => literal(Value::Null),
            Some(item) if numbers => number(item),
            Some(item) => text(item),
        })
        .collect();
    Expr::Array(Array { elem, named: true })
}

/// Names of catalogue columns that hold arrays; a quoted literal compared with one is an array literal.
static ARRAY_COLUMNS: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let columns = relations::all().iter().flat_map(|relation| &relation.columns);
    let arrays = columns.filter(|c| c.type_name.starts_with('_') || c.type_name.ends_with("vector"));
    QueryHeap::outside(|| arrays.map(|c| c.name).collect())
});

fn is_array_column(expr: &Expr) -> bool {
    match expr {
        Expr::Identifier(name) => ARRAY_COLUMNS.contains(fold(name).as_str()),
        Expr::CompoundIdentifier(parts) => parts.last().is_some_and(|name| ARRAY_COLUMNS.contains(fold(name).as_str())),
        _ => false,
    }
}

/// The operator that `OPERATOR(schema.symbol)` names.
fn operator(symbol: &str) -> Option<BinaryOperator> {
    use BinaryOperator::*;
    Some(match symbol {
        "~" => PGRegexMatch,
        "~*" => PGRegexIMatch,
        "!~" => PGRegexNotMatch,
        "!~*" => PGRegexNotIMatch,
        "~~" => PGLikeMatch,
        "~~*" => PGILikeMatch,
        "!~~" => PGNotLikeMatch,
        "!~~*" => PGNotILikeMatch,
        "=" => Eq,
        "<>" | "!=" => NotEq,
        "<" => Lt,
        "<=" => LtEq,
        ">" => Gt,
        ">=" => GtEq,
        "||" => StringConcat,
        "+" => Plus,
        "-" => Minus,
        "*" => Multiply,
        "/" => Divide,
        "%" => Modulo,
        "&" => BitwiseAnd,
        "|" => BitwiseOr,
        "@>" => AtArrow,
        "<@" => ArrowAt,
        _ => return None,
    })
}

/// Collations under which text compares by its bytes, as it always does here.
fn is_byte_collation(name: &ObjectName) -> bool {
    last_name(name)
        .is_some_and(|name| matches!(name.as_str(), "default" | "C" | "c" | "POSIX" | "C.UTF-8" | "ucs_basic"))
}

/// Set-returning functions that have an array-returning twin.
fn array_twin(name: &str) -> Option<&'static str> {
    Some(match name {
        "generate_series" => "pg_series",
        "generate_subscripts" => "pg_subscripts",
        "_pg_expandarray" => "pg_expand_array",
        "string_to_table" => "string_to_array",
        "pg_partition_ancestors" => "pg_ancestors",
        "json_array_elements" | "jsonb_array_elements" => "json_items",
        "json_array_elements_text" | "jsonb_array_elements_text" => "json_item_texts",
        "json_object_keys" | "jsonb_object_keys" => "json_keys",
        _ => return None,
    })
}

impl VisitorMut for Rewriter {
    type Break = ();

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<()> {
        self.inserts = matches!(statement, Statement::Insert(insert) if insert.source.is_some());
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        // The standard's way to write LIMIT.
        if let Some(Fetch { with_ties: false, percent: false, quantity }) = &mut query.fetch
            && let LimitClause::LimitOffset { limit: limit @ None, .. } = query
                .limit_clause
                .get_or_insert(LimitClause::LimitOffset { limit: None, offset: None, limit_by: vec![] })
        {
            *limit = Some(quantity.take().unwrap_or_else(|| number(1)));
            query.fetch = None;
        }
        if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &mut query.limit_clause {
            let offset = offset.as_mut().map(|offset| &mut offset.value);
            for count in limit.iter_mut().chain(offset) {
                // A literal is of the type that is wanted.
                if let Some(read) = string_literal(count).and_then(|text| text.trim().parse::<i64>().ok()) {
                    *count = number(read);
                }
            }
        }
        // What an `INSERT` spells out is of the table's types.
        let is_inserted = std::mem::take(&mut self.inserts);
        if let SetExpr::Values(values) = query.body.as_mut()
            && !is_inserted
        {
            read_literals(values);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for table in &select.from {
            self.note_alias(&table.relation);
            for join in &table.joins {
                self.note_alias(&join.relation);
            }
        }
        name_whole_relations(select);
        if let Some(condition) = &mut select.selection {
            super::row_subquery::conditions(condition);
        }
        let name = |item: &SelectItem| match item {
            SelectItem::UnnamedExpr(expr) => Some(expression_name(expr)),
            _ => None,
        };
        self.names.push(select.projection.iter().map(name).collect());
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        // Nothing is before the first relation.
        if let Some(first) = select.from.first_mut() {
            set_lateral(&mut first.relation, false);
        }
        for NamedWindowDefinition(_, window) in &mut select.named_window {
            if let NamedWindowExpr::WindowSpec(WindowSpec { window_frame: Some(frame), .. }) = window {
                super::syntax::restore_frame(frame);
            }
        }
        let names = self.names.pop().unwrap_or_default();
        for (item, name) in select.projection.iter_mut().zip(names) {
            if let (SelectItem::UnnamedExpr(expr), Some(name)) = (&mut *item, name)
                && expression_name(expr) != name
            {
                let alias = identifier(&name);
                *item = SelectItem::ExprWithAlias { expr: take(expr), alias };
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        self.table_function(factor);
        if let TableFactor::Derived { subquery, alias: Some(alias), .. } = factor
            && !alias.columns.is_empty()
            && let Some(names) = output_names(&subquery.body)
        {
            // Columns without a new name keep theirs.
            let others = names.iter().skip(alias.columns.len()).map(|name| identifier(name));
            alias.columns.extend(others.map(|name| TableAliasColumnDef { name, data_type: None }));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.expression(expr);
        ControlFlow::Continue(())
    }
}

impl Rewriter {
    fn note_alias(&mut self, factor: &TableFactor) {
        if let TableFactor::Table { name, alias, args: None, .. } = factor {
            let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident().map(fold)).collect();
            let alias = alias.as_ref().map(|alias| fold(&alias.name)).or_else(|| parts.last().cloned());
            if let Some(alias) = alias {
                self.aliases.insert(alias, parts.join("."));
            }
        }
    }

    fn expression(&mut self, expr: &mut Expr) {
        super::patterns::translate(expr);
        super::syntax::expression(expr);
        match expr {
            Expr::Value(ValueWithSpan { value: Value::Number(number, _), .. }) if is_beyond_decimal(number) => {
                *expr = Expr::Cast {
                    kind: CastKind::DoubleColon,
                    expr: Box::new(text(number.clone())),
                    data_type: DataType::DoublePrecision,
                    array: false,
                    format: None,
                };
            }
            Expr::Value(value) if matches!(value.value, Value::DollarQuotedString(_)) => {
                if let Value::DollarQuotedString(quoted) = &value.value {
                    *expr = text(quoted.value.clone());
                }
            }
            Expr::Collate { expr: inner, collation } if is_byte_collation(collation) => *expr = take(inner),
            // A field of a row, which DataFusion wants named by a literal. Behind a name that stands by itself it is one more part of
            // a column's name.
            Expr::CompoundFieldAccess { root, access_chain } => {
                let is_name = matches!(**root, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
                let is_dot = |access: &AccessExpr| matches!(access, AccessExpr::Dot(_));
                let names = if is_name { access_chain.iter().take_while(|access| is_dot(access)).count() } else { 0 };
                for access in &mut access_chain[names..] {
                    if let AccessExpr::Dot(field) = access
                        && let Expr::Identifier(name) = field
                    {
                        *field = text(fold(name));
                    }
                }
            }
            Expr::Identifier(name) if name.quote_style.is_none() => {
                let name = name.value.to_lowercase();
                if matches!(name.as_str(), "current_schema" | "current_catalog" | "current_role") {
                    *expr = call(&name, vec![]);
                } else if name == "localtimestamp" {
                    *expr = call("localtimestamp", vec![]);
                }
            }
            Expr::CompoundIdentifier(parts) => {
                if let [relation, column] = parts.as_slice()
                    && fold(column) == "tableoid"
                    && let Some(name) = self.aliases.get(&fold(relation))
                {
                    *expr = call("pg_tableoid", vec![text(name.clone())]);
                }
            }
            Expr::BinaryOp { left, op, right } => {
                if let BinaryOperator::PGCustomBinaryOperator(parts) = op
                    && let Some(known) = parts.last().and_then(|symbol| operator(symbol))
                {
                    *op = known;
                }
                if matches!(op, BinaryOperator::Eq | BinaryOperator::NotEq) {
                    for (column, other) in [(&*left, &mut *right)] {
                        if is_array_column(column)
                            && let Some(items) = string_literal(other).and_then(array_items)
                        {
                            **other = array_expression(items);
                        }
                    }
                }
            }
            Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } => {
                if let Some(items) = string_literal(right).and_then(array_items) {
                    **right = array_expression(items);
                }
                any_as_all(expr);
            }
            Expr::AtTimeZone { timestamp, time_zone } => {
                let args = vec![take(time_zone), take(timestamp)];
                *expr = call("timezone", args);
            }
            Expr::Substring { expr: value, substring_from: Some(from), substring_for: None, .. }
                if string_literal(from).is_some() =>
            {
                let args = vec![take(value), take(from)];
                *expr = call("array_element", vec![call("regexp_match", args), number(1)]);
            }
            Expr::Cast { .. } => cast(expr),
            Expr::TypedString(typed)
                if custom_type(&typed.data_type).is_some_and(|name| READ.contains(&name.as_str())) =>
            {
                let name = custom_type(&typed.data_type).unwrap_or_default();
                if let Value::SingleQuotedString(value) = &typed.value.value {
                    *expr = call(&format!("{name}_in"), vec![text(value.clone())]);
                }
            }
            Expr::TypedString(typed)
                if custom_type(&typed.data_type).is_some_and(|name| REGISTERED.contains(&name.as_str())) =>
            {
                let name = custom_type(&typed.data_type).unwrap_or_default();
                if let Value::SingleQuotedString(value) = &typed.value.value {
                    *expr = call(&format!("{}_in", registered_function(&name)), vec![text(value.clone())]);
                }
            }
            Expr::Function(_) => self.function(expr),
            _ => {}
        }
    }

    fn function(&mut self, expr: &mut Expr) {
        let Expr::Function(function) = expr else { return };
        let Some(name) = function_name(&function.name) else { return };
        if let FunctionArguments::Subquery(query) = &mut function.args
            && name == "array"
        {
            let query = std::mem::replace(query, Box::new(empty_query()));
            *expr = array_of_query(query);
            return;
        }
        if function.name.0.len() > 1 {
            function.name = ObjectName::from(vec![identifier(&name)]);
        }
        if let "current_timestamp" | "localtimestamp" = name.as_str()
            && let Some(digits) = precision_of(function)
        {
            let zone =
                if name == "localtimestamp" { TimezoneInfo::WithoutTimeZone } else { TimezoneInfo::WithTimeZone };
            function.args = FunctionArguments::None;
            let now = Expr::Function(function.clone());
            *expr = Expr::Cast {
                kind: CastKind::Cast,
                expr: Box::new(now),
                data_type: DataType::Timestamp(Some(digits), zone),
                array: false,
                format: None,
            };
            return;
        }
        let twin = array_twin(&name);
        let known = matches!(
            name.as_str(),
            "mod" | "ceiling" | "every" | "regexp_matches" | "regexp_split_to_array" | "regexp_split_to_table"
        );
        if name == "every" || name == "ceiling" {
            let other = if name == "every" { "bool_and" } else { "ceil" };
            function.name = ObjectName::from(vec![plain(other)]);
            return;
        }
        if !known && twin.is_none() {
            return;
        }
        let Some(mut args) = args_of(function) else { return };
        *expr = match (name.as_str(), twin) {
            (_, Some(twin)) => call("unnest", vec![call(twin, args)]),
            ("mod", _) if args.len() == 2 => {
                let nested = |arg: Expr| Box::new(Expr::Nested(Box::new(arg)));
                let right = args.pop().map(nested);
                let left = args.pop().map(nested);
                let (Some(left), Some(right)) = (left, right) else { return };
                Expr::Nested(Box::new(Expr::BinaryOp { left, op: BinaryOperator::Modulo, right }))
            }
            ("regexp_matches", _) => call("unnest", vec![call(super::functions::ALL_MATCHES, args)]),
            ("regexp_split_to_array", _) if matches!(args.len(), 2 | 3) => split_by_pattern(args, &name),
            ("regexp_split_to_table", _) if matches!(args.len(), 2 | 3) => {
                call("unnest", vec![split_by_pattern(args, &name)])
            }
            // With a number of arguments that it does not take, planning says so.
            _ => call(&name, args),
        };
    }

    /// A function in FROM: its column has the alias's name, and its arguments may be anything.
    fn table_function(&mut self, factor: &mut TableFactor) {
        let (name, mut args, alias, ordinality) = match factor {
            TableFactor::Table { name, args: Some(args), alias, with_ordinality, .. } => {
                let Some(name) = function_name(name) else { return };
                let args = args.args.to_vec();
                (name, args, alias, *with_ordinality)
            }
            TableFactor::Function { name, args, alias, with_ordinality, .. } => {
                let Some(name) = function_name(name) else { return };
                (name, args.clone(), alias, *with_ordinality)
            }
            TableFactor::UNNEST { array_exprs, alias, with_ordinality, with_offset: false, .. } => {
                let args = array_exprs.iter().cloned().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)));
                if array_exprs.len() > 1 || !*with_ordinality {
                    if let [array] = array_exprs.as_mut_slice() {
                        super::syntax::flatten(array);
                    }
                    super::syntax::tell_apart(array_exprs);
                    // DataFusion's own, but for the names of the columns.
                    let own = identifier("unnest");
                    let alias = alias.get_or_insert_with(|| table_alias(own.clone(), vec![]));
                    if array_exprs.len() == 1 && alias.columns.is_empty() {
                        alias.columns.push(TableAliasColumnDef { name: alias.name.clone(), data_type: None });
                    }
                    let named = alias.columns.len();
                    let others =
                        (named..array_exprs.len()).map(|_| TableAliasColumnDef { name: own.clone(), data_type: None });
                    alias.columns.extend(others);
                    return;
                }
                ("unnest".to_owned(), args.collect(), alias, true)
            }
            _ => return,
        };
        let mut exprs = Vec::with_capacity(args.len());
        for arg in args.drain(..) {
            match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) => exprs.push(arg),
                _ => return,
            }
        }
        super::patterns::translate_call(&name, &mut exprs);
        let table_name = alias.as_ref().map_or_else(|| identifier(&name), |alias| alias.name.clone());
        let mut columns = alias.as_ref().map(|alias| alias.columns.clone()).unwrap_or_default();
        if columns.is_empty() {
            let own = if name == "pg_partition_ancestors" { identifier("relid") } else { table_name.clone() };
            columns.push(TableAliasColumnDef { name: own, data_type: None });
        }
        if ordinality && columns.len() < 2 {
            columns.push(TableAliasColumnDef::from_name("ordinality"));
        }
        if name == "pg_get_keywords" && exprs.is_empty() && !ordinality {
            *factor = keywords(alias.clone().unwrap_or_else(|| table_alias(table_name, vec![])));
            return;
        }
        let value = match (name.as_str(), array_twin(&name)) {
            // The table function of DataFusion counts without making a list.
            ("generate_series", _) if !ordinality && exprs.iter().all(is_integer) => {
                // It counts in bigint; a series of integers is one of integers.
                let small = exprs.iter().all(is_small_integer);
                let value = vec![TableAliasColumnDef::from_name("value")];
                let inner = if small {
                    table_alias(plain("series"), value)
                } else {
                    table_alias(table_name.clone(), columns.clone())
                };
                let series = TableFactor::Table {
                    name: ObjectName::from(vec![plain("generate_series")]),
                    alias: Some(inner),
                    args: Some(TableFunctionArgs {
                        args: exprs.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))).collect(),
                        settings: None,
                    }),
                    with_hints: vec![],
                    version: None,
                    with_ordinality: false,
                    partitions: vec![],
                    json_path: None,
                    sample: None,
                    index_hints: vec![],
                };
                *factor = if small {
                    let cast = Expr::Cast {
                        kind: CastKind::DoubleColon,
                        expr: Box::new(Expr::Identifier(plain("value"))),
                        data_type: DataType::Int4(None),
                        array: false,
                        format: None,
                    };
                    let from = vec![TableWithJoins { relation: series, joins: vec![] }];
                    derived(select(vec![unnamed(cast)], from), table_alias(table_name, columns))
                } else {
                    series
                };
                return;
            }
            ("unnest", _) => exprs.into_iter().next().map(|mut array| {
                super::syntax::flatten(&mut array);
                array
            }),
            ("regexp_matches", _) => Some(call(super::functions::ALL_MATCHES, exprs)),
            ("json_array_elements" | "jsonb_array_elements", _) => Some(call("json_items", exprs)),
            ("json_array_elements_text" | "jsonb_array_elements_text", _) => Some(call("json_item_texts", exprs)),
            ("json_object_keys" | "jsonb_object_keys", _) => Some(call("json_keys", exprs)),
            ("regexp_split_to_table", _) if matches!(exprs.len(), 2 | 3) => Some(split_by_pattern(exprs, &name)),
            (_, Some(twin)) => Some(call(twin, exprs)),
            _ if super::functions::is_function(&name) => {
                let is_lateral = exprs.iter().any(names_column);
                let projection = vec![unnamed(call(&name, exprs))];
                *factor = derived(select(projection, vec![]), table_alias(table_name, columns));
                set_lateral(factor, is_lateral);
                return;
            }
            _ => return,
        };
        let Some(value) = value else { return };
        let is_lateral = names_column(&value);
        let mut projection = vec![unnamed(call("unnest", vec![value.clone()]))];
        if ordinality {
            projection.push(unnamed(call("unnest", vec![call("pg_ordinals", vec![value])])));
        }
        for (index, item) in projection.iter_mut().enumerate() {
            if let SelectItem::UnnamedExpr(expr) = item {
                *item = SelectItem::ExprWithAlias { expr: take(expr), alias: identifier(&format!("c{index}")) };
            }
        }
        *factor = derived(select(projection, vec![]), table_alias(table_name, columns));
        set_lateral(factor, is_lateral);
    }
}

/// How a query's outputs are called, if it says so itself.
fn output_names(body: &SetExpr) -> Option<Vec<String>> {
    match body {
        SetExpr::Select(select) => select.projection.iter().map(output_name).collect(),
        SetExpr::Values(values) => {
            Some((1..=values.rows.first()?.len()).map(|place| format!("column{place}")).collect())
        }
        SetExpr::SetOperation { left, .. } => output_names(left),
        SetExpr::Query(query) => output_names(&query.body),
        _ => None,
    }
}

/// Functions in FROM may be given columns of what is before them.
fn set_lateral(factor: &mut TableFactor, is_lateral: bool) {
    if let TableFactor::Derived { lateral, .. } = factor {
        *lateral = is_lateral;
    }
}

/// `pg_get_keywords()`: the columns of the rows that `pg_keywords` lists.
fn keywords(mut alias: TableAlias) -> TableFactor {
    if !alias.columns.is_empty() {
        let unnamed = super::functions::KEYWORD_COLUMNS.iter().skip(alias.columns.len());
        alias.columns.extend(unnamed.map(|name| TableAliasColumnDef::from_name(*name)));
    }
    let row = || Expr::Identifier(plain("keyword"));
    let rows = call("unnest", vec![call("pg_keywords", vec![])]);
    let rows = derived(
        select(vec![SelectItem::ExprWithAlias { expr: rows, alias: plain("keyword") }], vec![]),
        table_alias(plain("keywords"), vec![]),
    );
    let column = |name: &&str| SelectItem::ExprWithAlias {
        expr: call("get_field", vec![row(), text(*name)]),
        alias: identifier(name),
    };
    let columns = super::functions::KEYWORD_COLUMNS.iter().map(column).collect();
    derived(select(columns, vec![TableWithJoins { relation: rows, joins: vec![] }]), alias)
}

/// Splits text at what matches a pattern: all matches are marked where they stand. A flag for all of them is refused when the call is made.
fn split_by_pattern(mut args: Vec<Expr>, name: &str) -> Expr {
    let [before, after] = super::functions::MATCH_MARKS;
    let flags = match args.get(2).map(|flags| (flags, string_literal(flags))) {
        None => text("g"),
        Some((_, Some(written))) if !written.contains('g') => text(format!("{written}g")),
        Some((flags, _)) => call("pg_split_flags", vec![flags.clone(), text(name)]),
    };
    args.truncate(2);
    args.extend([text(format!("{before}\\0{after}")), flags]);
    call("pg_split_at_matches", vec![call("regexp_replace", args)])
}

/// True of a number with an exponent that no decimal of 38 digits holds, which then is a float.
fn is_beyond_decimal(number: &str) -> bool {
    let Some((mantissa, exponent)) = number.split_once(['e', 'E']) else { return false };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let Ok(exponent) = exponent.parse::<i64>() else { return false };
    let scale = fraction.len() as i64 - exponent;
    let digits = whole.trim_start_matches('0').len() as i64 + fraction.len() as i64;
    digits.max(digits - scale) > 38 || scale > 38
}

fn is_integer(expr: &Expr) -> bool {
    match expr {
        Expr::Value(ValueWithSpan { value: Value::Number(text, _), .. }) => text.parse::<i64>().is_ok(),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => is_integer(expr),
        _ => false,
    }
}

fn is_small_integer(expr: &Expr) -> bool {
    match expr {
        Expr::Value(ValueWithSpan { value: Value::Number(text, _), .. }) => text.parse::<i32>().is_ok(),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => is_small_integer(expr),
        _ => false,
    }
}

pub fn unnamed(expr: Expr) -> SelectItem {
    SelectItem::UnnamedExpr(expr)
}

pub fn table_alias(name: Ident, columns: Vec<TableAliasColumnDef>) -> TableAlias {
    TableAlias { explicit: true, name, columns, at: None }
}

pub fn derived(query: Query, alias: TableAlias) -> TableFactor {
    TableFactor::Derived { lateral: false, subquery: Box::new(query), alias: Some(alias), sample: None }
}

pub fn empty_query() -> Query {
    select(vec![], vec![])
}

pub fn select(projection: Vec<SelectItem>, from: Vec<TableWithJoins>) -> Query {
    let select = Select {
        select_token: helpers::attached_token::AttachedToken::empty(),
        optimizer_hints: vec![],
        distinct: None,
        select_modifiers: None,
        top: None,
        top_before_distinct: false,
        projection,
        exclude: None,
        into: None,
        from,
        lateral_views: vec![],
        prewhere: None,
        selection: None,
        connect_by: vec![],
        group_by: GroupByExpr::Expressions(vec![], vec![]),
        cluster_by: vec![],
        distribute_by: vec![],
        sort_by: vec![],
        having: None,
        named_window: vec![],
        qualify: None,
        window_before_qualify: false,
        value_table_mode: None,
        flavor: SelectFlavor::Standard,
    };
    Query {
        with: None,
        body: Box::new(SetExpr::Select(Box::new(select))),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: vec![],
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: vec![],
    }
}

/// `ARRAY(SELECT e … ORDER BY o)` as an aggregate that collects, empty where there is nothing to.
fn array_of_query(mut query: Box<Query>) -> Expr {
    let simple = query.with.is_none()
        && query.limit_clause.is_none()
        && query.fetch.is_none()
        && query.locks.is_empty()
        && matches!(&*query.body, SetExpr::Select(select)
            if select.distinct.is_none()
                && select.having.is_none()
                && matches!(&select.group_by, GroupByExpr::Expressions(by, _) if by.is_empty())
                && select.projection.len() == 1
                && !has_set_function(&select.projection));
    let order: Vec<OrderByExpr> = match query.order_by.as_ref().map(|order| &order.kind) {
        None => vec![],
        Some(OrderByKind::Expressions(order)) => order.clone(),
        Some(OrderByKind::All(_)) => return call("array_or_empty", vec![Expr::Subquery(query)]),
    };
    if simple && let SetExpr::Select(select) = &mut *query.body {
        let value = match &mut select.projection[0] {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => take(expr),
            _ => return call("array_or_empty", vec![Expr::Subquery(query)]),
        };
        let order = order.into_iter().map(|mut by| {
            if matches!(&by.expr, Expr::Value(ValueWithSpan { value: Value::Number(one, _), .. }) if one == "1") {
                by.expr = value.clone();
            }
            by
        });
        let clauses = order.collect::<Vec<_>>();
        let mut collected = call("array_agg", vec![value]);
        if let Expr::Function(Function { args: FunctionArguments::List(list), .. }) = &mut collected
            && !clauses.is_empty()
        {
            list.clauses.push(FunctionArgumentClause::OrderBy(clauses));
        }
        select.projection = vec![SelectItem::ExprWithAlias { expr: collected, alias: identifier("array") }];
        query.order_by = None;
        return call("array_or_empty", vec![Expr::Subquery(query)]);
    }
    let column = identifier("item");
    let alias = table_alias(identifier("items"), vec![TableAliasColumnDef { name: column.clone(), data_type: None }]);
    let from = TableWithJoins { relation: derived(*query, alias), joins: vec![] };
    let collected = call("array_agg", vec![Expr::Identifier(column)]);
    let projection = vec![SelectItem::ExprWithAlias { expr: collected, alias: identifier("array") }];
    call("array_or_empty", vec![Expr::Subquery(Box::new(select_from(projection, from)))])
}

fn select_from(projection: Vec<SelectItem>, from: TableWithJoins) -> Query {
    select(projection, vec![from])
}

/// Whether an item calls an aggregate or expands a set, which cannot stand inside `array_agg`.
fn has_set_function(projection: &[SelectItem]) -> bool {
    struct Find(bool);
    impl Visitor for Find {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Function(function) = expr
                && let Some(name) = function_name(&function.name)
                && (super::syntax::is_aggregate(&name) || name == "unnest" || function.over.is_some())
            {
                self.0 = true;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        }
    }
    let mut find = Find(false);
    for item in projection {
        let _ = walk(item, &mut find);
    }
    find.0
}

/// Writes `t.*` out as `s.t.*` where `s.t` has no other name: planning knows the relation by both parts.
fn name_whole_relations(select: &mut Select) {
    let of_items = |item: &SelectItem| matches!(item, SelectItem::QualifiedWildcard(..));
    if !select.projection.iter().any(of_items) {
        return;
    }
    let mut full: HashMap<String, ObjectName> = HashMap::new();
    let relations = select
        .from
        .iter()
        .flat_map(|from| std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)));
    for relation in relations {
        match relation {
            TableFactor::Table { name, alias: None, args: None, .. } if name.0.len() > 1 => {
                if let Some(last) = name.0.last().and_then(|part| part.as_ident()) {
                    full.insert(fold(last), name.clone());
                }
            }
            _ => {}
        }
    }
    for item in &mut select.projection {
        if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) = item
            && let [only] = name.0.as_slice()
            && let Some(known) = only.as_ident().and_then(|only| full.get(&fold(only)))
        {
            *name = known.clone();
        }
    }
}

/// The precision that is the one argument of a call.
fn precision_of(function: &Function) -> Option<u64> {
    let FunctionArguments::List(list) = &function.args else { return None };
    match list.args.as_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value)))] => match &value.value {
            Value::Number(digits, _) => digits.parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

/// Types that a function reads, which knows what is none of theirs.
const READ: [&str; 2] = ["pg_lsn", "xid8"];

fn cast(expr: &mut Expr) {
    let Expr::Cast { expr: inner, data_type, .. } = expr else { return };
    if let Some(name) = custom_type(data_type).filter(|name| READ.contains(&name.as_str())) {
        *expr = call(&format!("{name}_in"), vec![take(inner)]);
        return;
    }
    if let Some(name) = custom_type(data_type)
        && REGISTERED.contains(&name.as_str())
    {
        // A cast from one to the other (`x::regproc::regprocedure`) keeps the oid.
        let inner = take(inner);
        *expr = call(&format!("{}_in", registered_function(&name)), vec![inner]);
        return;
    }
    if let Some(kind) = registered_kind(inner)
        && is_text_type(data_type)
    {
        let inner = take(inner);
        *expr = call(&format!("{kind}_out"), vec![inner]);
        return;
    }
    if let DataType::Array(_) = data_type
        && let Some(items) = string_literal(inner).and_then(array_items)
    {
        let items = items.into_iter().map(|item| item.map_or_else(|| literal(Value::Null), text)).collect();
        **inner = Expr::Array(Array { elem: items, named: true });
    }
    unqualify_type(data_type);
}
