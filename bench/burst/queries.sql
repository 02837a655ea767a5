-- Queries whose heap is large for their rows: what each of them keeps is in its name. Over TPC-H's tables.
-- join: rows of a table as large as the one that asks for them
SELECT count(*), sum(a.l_quantity * b.l_extendedprice)
FROM lineitem a JOIN lineitem b ON a.l_orderkey = b.l_orderkey AND a.l_linenumber = b.l_linenumber AND a.l_comment = b.l_comment;
-- grouping: a group for each row or nearly
SELECT count(*), sum(quantity), max(last)
FROM (SELECT l_partkey, l_suppkey, l_orderkey, sum(l_quantity) AS quantity, max(l_shipdate) AS last FROM lineitem GROUP BY l_partkey, l_suppkey, l_orderkey) AS groups;
-- distinct: values of text
SELECT count(*), count(DISTINCT l_comment), count(DISTINCT l_orderkey) FROM lineitem;
-- sort: whole rows, of which the last are seen
SELECT l_orderkey, l_linenumber, l_shipdate, l_quantity, l_extendedprice, l_shipinstruct, l_comment
FROM lineitem ORDER BY l_shipdate, l_extendedprice, l_orderkey OFFSET {last_rows};
-- window: all rows in partitions of six hundred
SELECT sum(place), sum(before * place)
FROM (SELECT row_number() OVER (PARTITION BY l_suppkey ORDER BY l_shipdate, l_orderkey, l_linenumber) AS place,
             lag(l_quantity) OVER (PARTITION BY l_suppkey ORDER BY l_shipdate, l_orderkey, l_linenumber) AS before FROM lineitem) AS numbered;
