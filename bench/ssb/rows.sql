-- The star-schema benchmark's tables, made by DuckDB as its dbgen makes them: the same numbers of rows, keys, hierarchies, ranges and
-- prices; what dbgen draws at random is a hash of the row's key and the column here, so rows are always the same but not dbgen's.
-- (P. O'Neil, E. O'Neil, X. Chen: Star Schema Benchmark, revision 3, 2009.)
--
-- `scale_factor` is set before. The table `date` is called dates.

CREATE MACRO mixed(a, b) AS hash(xor(hash(a) // 2, hash(b)));
-- From low to high, both included.
CREATE MACRO draw(a, b, low, high) AS (low + mixed(a, b) % (high - low + 1)::ubigint)::bigint;
CREATE MACRO pick(list, number) AS list[1 + (number % len(list))::integer];
CREATE MACRO text_of(a, b, length_max) AS left(md5(a || ' ' || b) || md5(b || ' ' || a), 10 + draw(a, b, 0, length_max - 10)::integer);

CREATE TEMP TABLE nations AS SELECT number, nation, region FROM (
    SELECT unnest(range(25)) AS number, unnest(['ALGERIA', 'ARGENTINA', 'BRAZIL', 'CANADA', 'EGYPT', 'ETHIOPIA', 'FRANCE', 'GERMANY', 'INDIA', 'INDONESIA',
        'IRAN', 'IRAQ', 'JAPAN', 'JORDAN', 'KENYA', 'MOROCCO', 'MOZAMBIQUE', 'PERU', 'CHINA', 'ROMANIA', 'SAUDI ARABIA', 'VIETNAM', 'RUSSIA',
        'UNITED KINGDOM', 'UNITED STATES']) AS nation, unnest(['AFRICA', 'AMERICA', 'AMERICA', 'AMERICA', 'MIDDLE EAST', 'AFRICA', 'EUROPE', 'EUROPE', 'ASIA',
        'ASIA', 'MIDDLE EAST', 'MIDDLE EAST', 'ASIA', 'MIDDLE EAST', 'AFRICA', 'AFRICA', 'AFRICA', 'AMERICA', 'ASIA', 'EUROPE', 'MIDDLE EAST', 'ASIA',
        'EUROPE', 'EUROPE', 'AMERICA']) AS region);
CREATE TEMP TABLE lists AS SELECT
    ['AUTOMOBILE', 'BUILDING', 'FURNITURE', 'HOUSEHOLD', 'MACHINERY'] AS segments,
    ['1-URGENT', '2-HIGH', '3-MEDIUM', '4-NOT SPECI', '5-LOW'] AS priorities,
    ['REG AIR', 'AIR', 'RAIL', 'TRUCK', 'MAIL', 'FOB', 'SHIP'] AS modes,
    ['almond', 'azure', 'blue', 'chocolate', 'cornflower', 'dodger', 'firebrick', 'forest', 'ghost', 'green', 'honeydew', 'indian', 'ivory', 'khaki',
        'lace', 'lavender', 'lemon', 'lime', 'magenta', 'maroon', 'midnight', 'navy', 'olive', 'orchid', 'peru', 'pink', 'plum', 'red', 'rose', 'saddle',
        'salmon', 'sienna', 'smoke', 'steel', 'tan', 'tomato', 'turquoise', 'violet', 'wheat', 'white'] AS colors,
    ['STANDARD', 'SMALL', 'MEDIUM', 'LARGE', 'ECONOMY', 'PROMO'] AS kinds,
    ['ANODIZED', 'BURNISHED', 'PLATED', 'POLISHED', 'BRUSHED'] AS finishes,
    ['TIN', 'NICKEL', 'BRASS', 'STEEL', 'COPPER'] AS metals,
    ['SM', 'LG', 'MED', 'JUMBO', 'WRAP'] AS sizes,
    ['CASE', 'BOX', 'BAG', 'JAR', 'PKG', 'PACK', 'CAN', 'DRUM'] AS boxes;
-- The first nine letters of the nation, and a digit.
CREATE MACRO city(nation, digit) AS rpad(left(nation, 9), 9, ' ') || digit;
CREATE MACRO phone(nation_number, a) AS
    (10 + nation_number) || '-' || draw(a, 'p1', 100, 999) || '-' || draw(a, 'p2', 100, 999) || '-' || draw(a, 'p3', 1000, 9999);

CREATE TEMP VIEW customer AS
SELECT key::integer AS c_custkey, 'Customer#' || lpad(key::varchar, 9, '0') AS c_name, text_of(key, 'c address', 25) AS c_address,
    city(nation, draw(key, 'c city', 0, 9)) AS c_city, nation AS c_nation, region AS c_region, phone(number, key) AS c_phone,
    pick(segments, draw(key, 'c segment', 0, 4)) AS c_mktsegment
FROM lists, (SELECT unnest(range(1, (30000 * getvariable('scale_factor'))::bigint + 1)) AS key) JOIN nations ON number = draw(key, 'c nation', 0, 24)
ORDER BY key;

CREATE TEMP VIEW supplier AS
SELECT key::integer AS s_suppkey, 'Supplier#' || lpad(key::varchar, 9, '0') AS s_name, text_of(key, 's address', 25) AS s_address,
    city(nation, draw(key, 's city', 0, 9)) AS s_city, nation AS s_nation, region AS s_region, phone(number, -key) AS s_phone
FROM (SELECT unnest(range(1, (2000 * getvariable('scale_factor'))::bigint + 1)) AS key) JOIN nations ON number = draw(key, 's nation', 0, 24)
ORDER BY key;

-- 200,000 times 1 + log2 of the scale factor, below 1 in proportion.
CREATE MACRO parts() AS
    (200000 * CASE WHEN getvariable('scale_factor') < 1 THEN getvariable('scale_factor') ELSE 1 + floor(log2(getvariable('scale_factor'))) END)::bigint;

CREATE TEMP VIEW part AS
SELECT key::integer AS p_partkey, pick(colors, draw(key, 'p name', 0, 39)) || ' ' || color AS p_name, mfgr AS p_mfgr,
    category AS p_category, category || draw(key, 'p brand', 1, 40) AS p_brand1, color AS p_color,
    pick(kinds, draw(key, 'p kind', 0, 5)) || ' ' || pick(finishes, draw(key, 'p finish', 0, 4)) || ' ' || pick(metals, draw(key, 'p metal', 0, 4)) AS p_type,
    draw(key, 'p size', 1, 50)::integer AS p_size,
    pick(sizes, draw(key, 'p package', 0, 4)) || ' ' || pick(boxes, draw(key, 'p box', 0, 7)) AS p_container
FROM (
    SELECT *, mfgr || draw(key, 'p category', 1, 5) AS category, pick(colors, draw(key, 'p color', 0, 39)) AS color
    FROM lists, (SELECT unnest(range(1, parts() + 1)) AS key), LATERAL (SELECT 'MFGR#' || draw(key, 'p mfgr', 1, 5) AS mfgr))
ORDER BY key;

CREATE TEMP VIEW dates AS
SELECT strftime(day, '%Y%m%d')::integer AS d_datekey, strftime(day, '%B %-d, %Y') AS d_date, dayname(day) AS d_dayofweek, monthname(day) AS d_month,
    year(day)::integer AS d_year, strftime(day, '%Y%m')::integer AS d_yearmonthnum, strftime(day, '%b%Y') AS d_yearmonth,
    (1 + dayofweek(day))::integer AS d_daynuminweek, day(day)::integer AS d_daynuminmonth, dayofyear(day)::integer AS d_daynuminyear,
    month(day)::integer AS d_monthnuminyear, (1 + (dayofyear(day) - 1) // 7)::integer AS d_weeknuminyear,
    CASE WHEN month(day) = 12 THEN 'Christmas' WHEN month(day) < 4 THEN 'Winter' WHEN month(day) < 6 THEN 'Spring' WHEN month(day) < 9 THEN 'Summer' ELSE 'Fall' END
        AS d_sellingseason,
    (dayofweek(day) = 6)::integer AS d_lastdayinweekfl, (day = last_day(day))::integer AS d_lastdayinmonthfl,
    (strftime(day, '%m-%d') IN ('12-24', '01-01', '02-20', '04-20', '05-20', '07-20', '08-20', '09-20', '10-20', '11-20'))::integer AS d_holidayfl,
    (dayofweek(day) BETWEEN 1 AND 5)::integer AS d_weekdayfl
FROM (SELECT unnest(range(DATE '1992-01-01', DATE '1999-01-01', INTERVAL 1 DAY))::date AS day)
ORDER BY day;

-- Orders of one to seven lines, by two customers of three, up to 2 August 1998; a part's price follows from its key.
CREATE TEMP VIEW lineorder AS
SELECT *, (sum(lo_extendedprice::bigint * (100 - lo_discount) * (100 + lo_tax) // 10000) OVER (PARTITION BY lo_orderkey))::integer AS lo_ordtotalprice
FROM (
    SELECT (8 * (number // 8) * 4 + number % 8 + 1)::integer AS lo_orderkey, line::integer AS lo_linenumber, customer::integer AS lo_custkey,
        part::integer AS lo_partkey, draw(id, 'supplier', 1, (2000 * getvariable('scale_factor'))::bigint)::integer AS lo_suppkey,
        strftime(day, '%Y%m%d')::integer AS lo_orderdate, pick(priorities, draw(number, 'priority', 0, 4)) AS lo_orderpriority, 0 AS lo_shippriority,
        quantity::integer AS lo_quantity, (quantity * price)::integer AS lo_extendedprice, discount::integer AS lo_discount,
        (quantity * price * (100 - discount) // 100)::integer AS lo_revenue, (6 * price // 10)::integer AS lo_supplycost, draw(id, 'tax', 0, 8)::integer AS lo_tax,
        strftime(day + draw(id, 'commit', 30, 90)::integer, '%Y%m%d')::integer AS lo_commitdate, pick(modes, draw(id, 'mode', 0, 6)) AS lo_shipmode
    FROM (
        SELECT *, 90000 + (part // 10) % 20001 + 100 * (part % 1000) AS price, draw(id, 'quantity', 1, 50) AS quantity, draw(id, 'discount', 0, 10) AS discount,
            -- Customers whose key is a multiple of three have no orders.
            drawn + CASE WHEN drawn % 3 > 0 THEN 0 WHEN drawn > 1 THEN -1 ELSE 1 END AS customer
        FROM (
            SELECT *, number * 8 + line AS id, draw(number * 8 + line, 'part', 1, parts()) AS part,
                draw(number, 'customer', 1, (30000 * getvariable('scale_factor'))::bigint) AS drawn,
                DATE '1992-01-01' + draw(number, 'day', 0, 2405)::integer AS day
            FROM (SELECT number, unnest(range(1, draw(number, 'lines', 1, 7) + 1)) AS line
                FROM range((1500000 * getvariable('scale_factor'))::bigint) AS orders(number)))), lists)
ORDER BY lo_orderkey, lo_linenumber;
