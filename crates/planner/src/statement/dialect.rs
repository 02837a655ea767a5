//! PostgreSQL's syntax, as the parser's own dialect has it, with what that gets wrong put right.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr};
use datafusion::sql::sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use std::any::{Any, TypeId};
use std::cell::Cell;

/// The parser tries one reading of a text and then another; where each is tried within each, that doubles with every level. Expressions
/// that it begins to read are counted, therefore, and a text in which they are many more than its words is refused (54001).
#[derive(Debug)]
pub struct Postgres {
    expressions: Cell<usize>,
}

/// Expressions that the parser may begin to read, and more of them for each word.
const EXPRESSIONS_MAX: usize = 50_000;
const EXPRESSIONS_PER_WORD_MAX: usize = 50;

impl Postgres {
    /// For a text of so many words at most.
    pub fn for_words(words: usize) -> Postgres {
        Postgres {
            expressions: Cell::new(words.saturating_mul(EXPRESSIONS_PER_WORD_MAX).saturating_add(EXPRESSIONS_MAX)),
        }
    }
}

/// `a BETWEEN SYMMETRIC b AND c`, whichever of both is less. That the other is the default `ASYMMETRIC` says.
fn between(dialect: &Postgres, parser: &mut Parser, expr: &Expr) -> Option<Result<Expr, ParserError>> {
    let word = |parser: &Parser, place| match parser.peek_nth_token(place).token {
        Token::Word(word) if word.quote_style.is_none() => word.value.to_ascii_uppercase(),
        _ => String::new(),
    };
    let negated = word(parser, 0) == "NOT";
    let place = usize::from(negated);
    if word(parser, place) != "BETWEEN" {
        return None;
    }
    let is_symmetric = match word(parser, place + 1).as_str() {
        "SYMMETRIC" => true,
        "ASYMMETRIC" => false,
        _ => return None,
    };
    (0..place + 2).for_each(|_| drop(parser.next_token()));
    let precedence = dialect.prec_value(Precedence::Between);
    let bounds = parser.parse_subexpr(precedence).and_then(|low| {
        parser.expect_keyword_is(Keyword::AND)?;
        Ok((low, parser.parse_subexpr(precedence)?))
    });
    if is_symmetric && let Ok((low, high)) = &bounds {
        // What is copied counts as if it had been written.
        let copied = crate::catalog::parts(expr) + crate::catalog::parts(low) + crate::catalog::parts(high);
        match dialect.expressions.get().checked_sub(copied) {
            Some(left) => dialect.expressions.set(left),
            None => return Some(Err(ParserError::RecursionLimitExceeded)),
        }
    }
    Some(bounds.map(|(low, high)| {
        let either = |low: &Expr, high: &Expr| Expr::Between {
            expr: Box::new(Expr::Nested(Box::new(expr.clone()))),
            negated,
            low: Box::new(low.clone()),
            high: Box::new(high.clone()),
        };
        if !is_symmetric {
            return either(&low, &high);
        }
        let op = if negated { BinaryOperator::And } else { BinaryOperator::Or };
        let (left, right) = (Box::new(either(&low, &high)), Box::new(either(&high, &low)));
        Expr::Nested(Box::new(Expr::BinaryOp { left, op, right }))
    }))
}

/// The keyword that a token to come is.
fn keyword(parser: &Parser, place: usize) -> Keyword {
    match &parser.peek_nth_token_ref(place).token {
        Token::Word(word) => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// Of what comes in parentheses: whether it begins with something in parentheses, and `is` the token after that. `None` where the parentheses do not
/// end. Looking ahead, nothing is parsed twice.
fn after_parentheses(parser: &Parser, is: impl Fn(&Token) -> bool) -> Option<bool> {
    let (mut depth, mut opened) = (0usize, 0usize);
    let mut place = parser.get_current_index() + 1;
    loop {
        match &parser.token_at(place).token {
            Token::EOF => return None,
            Token::Whitespace(_) => {}
            Token::LParen => (depth, opened) = (depth + 1, opened + 1),
            Token::RParen if depth <= 1 => return Some(false),
            Token::RParen => depth -= 1,
            token if depth == 1 => return Some(opened > 1 && is(token)),
            _ => {}
        }
        place += 1;
    }
}

/// `a IN ((SELECT …), b)`: a list whose first item is in parentheses. The parser takes a query there for all there is.
fn list_of_queries(parser: &mut Parser, expr: &Expr) -> Option<Result<Expr, ParserError>> {
    let negated = keyword(parser, 0) == Keyword::NOT;
    let place = usize::from(negated);
    if keyword(parser, place) != Keyword::IN || *parser.peek_nth_token_ref(place + 1) != Token::LParen {
        return None;
    }
    if !after_parentheses(parser, |token| *token == Token::Comma)? {
        return None;
    }
    (0..place + 2).for_each(|_| drop(parser.next_token()));
    let list = parser.parse_comma_separated(Parser::parse_expr).and_then(|list| {
        parser.expect_token(&Token::RParen)?;
        Ok(Expr::InList { expr: Box::new(expr.clone()), list, negated })
    });
    Some(list)
}

/// `a < ANY (VALUES …)`, and `a < ANY ((SELECT …) UNION …)`: the parser knows a query there by `SELECT` and `WITH` alone.
fn any_of_query(parser: &mut Parser, expr: &Expr) -> Option<Result<Expr, ParserError>> {
    let compare_op = match &parser.peek_nth_token_ref(0).token {
        Token::Eq => BinaryOperator::Eq,
        Token::Neq => BinaryOperator::NotEq,
        Token::Lt => BinaryOperator::Lt,
        Token::LtEq => BinaryOperator::LtEq,
        Token::Gt => BinaryOperator::Gt,
        Token::GtEq => BinaryOperator::GtEq,
        _ => return None,
    };
    let quantifier = keyword(parser, 1);
    let is_quantifier = matches!(quantifier, Keyword::ANY | Keyword::ALL | Keyword::SOME);
    if !is_quantifier || *parser.peek_nth_token_ref(2) != Token::LParen {
        return None;
    }
    let is_set_operation = |token: &Token| match token {
        Token::Word(word) => matches!(word.keyword, Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT),
        _ => false,
    };
    if keyword(parser, 3) != Keyword::VALUES && !after_parentheses(parser, is_set_operation)? {
        return None;
    }
    (0..3).for_each(|_| drop(parser.next_token()));
    let compared = parser.parse_query().and_then(|query| {
        parser.expect_token(&Token::RParen)?;
        let (left, right) = (Box::new(expr.clone()), Box::new(Expr::Subquery(query)));
        Ok(match quantifier {
            Keyword::ALL => Expr::AllOp { left, compare_op, right },
            quantifier => Expr::AnyOp { left, compare_op, right, is_some: quantifier == Keyword::SOME },
        })
    });
    Some(compared)
}

/// What the parser's own dialect says.
macro_rules! as_is {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            PostgreSqlDialect {}.$name($($argument),*)
        })*
    };
}

impl Dialect for Postgres {
    fn dialect(&self) -> TypeId {
        (PostgreSqlDialect {}).type_id()
    }

    /// `a IS DISTINCT FROM b AND c` is `(a IS DISTINCT FROM b) AND c`; the parser takes all that follows for its right side.
    /// `BETWEEN SYMMETRIC` it does not know, nor lists that begin with a query.
    fn parse_infix(&self, parser: &mut Parser, expr: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
        if let Some(between) = between(self, parser, expr) {
            return Some(between);
        }
        if let Some(asked) = list_of_queries(parser, expr).or_else(|| any_of_query(parser, expr)) {
            return Some(asked);
        }
        let negated = match () {
            () if parser.parse_keywords(&[Keyword::IS, Keyword::DISTINCT, Keyword::FROM]) => false,
            () if parser.parse_keywords(&[Keyword::IS, Keyword::NOT, Keyword::DISTINCT, Keyword::FROM]) => true,
            () => return None,
        };
        let left = Box::new(expr.clone());
        let right = parser.parse_subexpr(precedence).map(Box::new);
        Some(right.map(|right| match negated {
            false => Expr::IsDistinctFrom(left, right),
            true => Expr::IsNotDistinctFrom(left, right),
        }))
    }

    fn parse_prefix(&self, _parser: &mut Parser) -> Option<Result<Expr, ParserError>> {
        match self.expressions.get().checked_sub(1) {
            Some(left) => {
                self.expressions.set(left);
                None
            }
            // The one error that ends all that is tried.
            None => Some(Err(ParserError::RecursionLimitExceeded)),
        }
    }

    as_is! {
        identifier_quote_style(identifier: &str) -> Option<char>;
        is_delimited_identifier_start(ch: char) -> bool;
        is_identifier_start(ch: char) -> bool;
        is_identifier_part(ch: char) -> bool;
        supports_unicode_string_literal() -> bool;
        is_reserved_for_identifier(kw: Keyword) -> bool;
        is_custom_operator_part(ch: char) -> bool;
        get_next_precedence(parser: &Parser) -> Option<Result<u8, ParserError>>;
        supports_filter_during_aggregation() -> bool;
        supports_group_by_expr() -> bool;
        prec_value(prec: Precedence) -> u8;
        allow_extract_custom() -> bool;
        allow_extract_single_quotes() -> bool;
        supports_create_index_with_clause() -> bool;
        supports_explain_with_utility_options() -> bool;
        supports_listen_notify() -> bool;
        supports_factorial_operator() -> bool;
        supports_bitwise_shift_operators() -> bool;
        supports_comment_on() -> bool;
        supports_load_extension() -> bool;
        supports_named_fn_args_with_colon_operator() -> bool;
        supports_empty_projections() -> bool;
        supports_nested_comments() -> bool;
        supports_string_escape_constant() -> bool;
        supports_numeric_literal_underscores() -> bool;
        supports_array_typedef_with_brackets() -> bool;
        supports_geometric_types() -> bool;
        supports_set_names() -> bool;
        supports_alter_column_type_using() -> bool;
        supports_notnull_operator() -> bool;
        supports_interval_options() -> bool;
        supports_insert_table_alias() -> bool;
        supports_create_table_like_parenthesized() -> bool;
        supports_select_wildcard_with_alias() -> bool;
        supports_comma_separated_trim() -> bool;
        supports_xml_expressions() -> bool;
        supports_comment_optimizer_hint() -> bool;
    }
}
