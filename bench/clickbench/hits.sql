-- Rows of the shape of ClickBench's `hits`, made by DuckDB: 105 columns of a web analytics service over July 2013. Nothing is
-- random: each value is a hash of the row's number (or of its user, or its page) and the column's.
--
-- As in the original: rows lie in the order of counter, day, user and time; counters, users, pages and regions are skewed; most
-- search phrases, phone models, parameters and tags are empty; counter 62, user 435090932899640449 and the two hashes that queries
-- ask for are there. Unlike there: most columns that no query but SELECT * reads have simple distributions.
--
-- `wanted_rows` is set before, the result is the view `hits`.

-- DuckDB's hash of two values differs between second values in fixed bits only: hashing once more makes columns independent.
CREATE MACRO mixed(a, b) AS hash(xor(hash(a) // 2, hash(b)));
CREATE MACRO uniform(a, b) AS (mixed(a, b) >> 11)::double / 9007199254740992;
CREATE MACRO below(a, b, n) AS (mixed(a, b) % (n)::ubigint)::bigint;
-- Of n: the first log(2)/log(n) of the time, each next less.
CREATE MACRO zipf(a, b, n) AS floor(pow(n, uniform(a, b)))::bigint - 1;
-- Of n: number r with a density of r^(1/steepness - 1).
CREATE MACRO skewed(a, b, n, steepness) AS floor(n * pow(uniform(a, b), steepness))::bigint;
CREATE MACRO chance(a, b, p) AS uniform(a, b) < p;
-- Not quite down to the type's lowest value: queries take 3 away.
CREATE MACRO signed32(a, b) AS ((mixed(a, b) % 4294967000)::bigint - 2147483500)::integer;
CREATE MACRO bigint63(a, b) AS (mixed(a, b) >> 1)::bigint;
CREATE MACRO pick(list, number) AS list[1 + (number % len(list))::integer];

CREATE TEMP TABLE words AS SELECT [
    'auto', 'kniga', 'dom', 'foto', 'igra', 'kino', 'lada', 'mebel', 'novosti', 'okna', 'pogoda', 'recept', 'sad', 'tovar', 'uchebnik',
    'video', 'yandex', 'zhurnal', 'bank', 'credit', 'detali', 'forum', 'grad', 'hostel', 'interer', 'karta', 'market', 'online', 'portal',
    'remont', 'shop', 'travel'] AS latin, [
    'авто', 'книга', 'дом', 'фото', 'игра', 'кино', 'лада', 'мебель', 'новости', 'окна', 'погода', 'рецепт', 'сад', 'товар', 'учебник',
    'видео', 'отзывы', 'журнал', 'банк', 'кредит', 'детали', 'форум', 'город', 'купить', 'интерьер', 'карта', 'скачать', 'онлайн', 'портал',
    'ремонт', 'бесплатно', 'москва'] AS cyrillic, [
    'ru', 'com', 'ru', 'net', 'ru', 'ua', 'org', 'su'] AS domains, [
    'iPhone', 'iPad', 'GT-I9300', 'GT-I9100', 'Lumia 800', 'Desire HD', 'Xperia Z', 'Nexus 4', 'A500', 'Galaxy Tab', 'Asha 311', 'N8-00',
    'One X', 'Ideos', 'Optimus One', 'Touch 4G'] AS phones;

-- What the order of rows depends on. Counter 62 has the second rank, about one row in twenty.
CREATE TEMP TABLE visits AS
SELECT i, counter, user_rank,
    CASE user_rank WHEN 3 THEN 435090932899640449 ELSE bigint63(user_rank, 1) END AS user_id,
    TIMESTAMP '2013-07-01' + to_seconds((
        -- More in the evening than at night, more in the second half of the month.
        86400 * skewed(i, 2, 31, 0.9) + 86399 * pow(uniform(i, 3), 0.7))::bigint) AS moment
FROM (
    SELECT i, CASE zipf(i, 4, 6500) WHEN 1 THEN 62 ELSE 63 + zipf(i, 4, 6500) * 7919 % 230000 END AS counter,
        skewed(i, 5, greatest(getvariable('wanted_rows') // 5, 10), 2) AS user_rank
    FROM range(getvariable('wanted_rows')) AS numbers(i))
ORDER BY counter, moment::date, hash(user_id), moment, i;

-- The page of each visit, and where it came from: pages of a site are skewed, some phrases were looked for.
CREATE TEMP VIEW pages AS
SELECT *,
    CASE WHEN chance(i, 10, 0.3) THEN 0 ELSE skewed(i, 11, greatest(getvariable('wanted_rows') // 300, 20), 2.5) END AS page,
    CASE WHEN chance(i, 12, 0.13) THEN 1 + skewed(i, 13, greatest(getvariable('wanted_rows') // 12, 100), 1.6) END AS phrase_number,
    uniform(i, 14) AS came,
    i % 2000 = 7 AS about_google
FROM visits;

CREATE MACRO host(counter) AS
    (SELECT pick(latin, counter) || CASE WHEN counter % 3 = 0 THEN '-' ELSE '' END || pick(latin, counter // 32) || '.' || pick(domains, counter // 5) FROM words);
CREATE MACRO path(counter, page) AS
    (SELECT '/' || pick(latin, mixed(counter, page)) || '/' || CASE WHEN page = 0 THEN '' ELSE pick(latin, mixed(page, counter)) || '/' || page || CASE
        WHEN page % 3 = 0 THEN '.html' WHEN page % 3 = 1 THEN '?id=' || (mixed(page, 15) % 1000000) || '&sort=price&page=' || (page % 40) ELSE '/' END END FROM words);
CREATE MACRO phrase(number) AS
    (SELECT pick(cyrillic, mixed(number, 16)) || CASE WHEN number % 4 > 0 THEN ' ' || pick(cyrillic, mixed(number, 17)) ELSE '' END
        || CASE WHEN number % 4 > 1 THEN ' ' || pick(latin, mixed(number, 18)) ELSE '' END || CASE WHEN number > 500 THEN ' ' || number ELSE '' END FROM words);

CREATE TEMP VIEW texts AS
SELECT *,
    CASE WHEN about_google THEN CASE WHEN i % 4000 = 7 THEN 'http://www.google.ru/search?q=' ELSE 'http://' || host(counter) || '/about-google/' END || (i % 300)
        ELSE 'http://' || host(counter) || path(counter, page) END AS url,
    CASE WHEN phrase_number IS NULL THEN '' ELSE phrase(phrase_number) END AS search_phrase,
    CASE WHEN phrase_number IS NOT NULL AND came < 0.8 THEN 'http://yandex.ru/yandsearch?text=' || phrase(phrase_number) || '&lr=' || (phrase_number % 300)
        WHEN phrase_number IS NOT NULL THEN 'https://www.google.com/search?q=' || phrase(phrase_number)
        WHEN came < 0.2 THEN ''
        WHEN came < 0.6 THEN 'http://' || host(counter) || path(counter, 0)
        WHEN came < 0.9 THEN 'http://www.' || host(counter) || path(counter, skewed(i, 19, 2000, 2))
        ELSE 'https://' || host(63 + zipf(i, 20, 6500) * 7919) || path(7, zipf(i, 21, 50)) END AS referer,
    CASE WHEN chance(i, 22, 0.1) THEN ''
        WHEN about_google OR i % 2000 = 9 THEN 'Google — ' || phrase(i % 500)
        ELSE phrase(mixed(counter, page) % 100000) || ' — ' || phrase(mixed(page, 23) % 400) || ' | ' || host(counter) END AS title
FROM pages;

CREATE TEMP VIEW hits AS
SELECT
    bigint63(i, 30) AS watchid,
    (NOT chance(i, 31, 0.3))::smallint AS javaenable,
    title,
    1::smallint AS goodevent,
    moment AS eventtime,
    moment::date AS eventdate,
    counter::integer AS counterid,
    signed32(user_rank, 32 + i % 2) AS clientip,
    CASE WHEN chance(user_rank, 34, 0.2) THEN 229 ELSE zipf(user_rank, 35, 5400) END::integer AS regionid,
    user_id AS userid,
    below(counter, 36, 3)::smallint - 1 AS counterclass,
    zipf(user_rank, 37, 90)::smallint AS os,
    zipf(user_rank, 38, 80)::smallint AS useragent,
    url,
    referer,
    chance(i, 39, 0.12)::smallint AS isrefresh,
    CASE WHEN referer = '' THEN 0 ELSE zipf(counter, 40, 20000) END::smallint AS referercategoryid,
    CASE WHEN referer = '' THEN 0 ELSE zipf(counter, 41, 5000) END::integer AS refererregionid,
    zipf(counter, 42, 20000)::smallint AS urlcategoryid,
    zipf(counter, 43, 5000)::integer AS urlregionid,
    pick([1280, 1366, 1920, 1024, 1440, 1600, 320, 768, 1680, 0], zipf(user_rank, 44, 10))::smallint AS resolutionwidth,
    pick([1024, 768, 1080, 768, 900, 900, 480, 1024, 1050, 0], zipf(user_rank, 44, 10))::smallint AS resolutionheight,
    pick([32, 24, 16, 0], zipf(user_rank, 45, 4))::smallint AS resolutiondepth,
    pick([11, 10, 0, 9], zipf(user_rank, 46, 4))::smallint AS flashmajor,
    below(user_rank, 47, 10)::smallint AS flashminor,
    pick(['700', '', '0', '202', 'b95'], zipf(user_rank, 48, 5)) AS flashminor2,
    CASE WHEN chance(user_rank, 49, 0.4) THEN below(user_rank, 50, 4) ELSE 0 END::smallint AS netmajor,
    CASE WHEN chance(user_rank, 49, 0.4) THEN below(user_rank, 51, 6) ELSE 0 END::smallint AS netminor,
    below(user_rank, 52, 40)::smallint AS useragentmajor,
    pick(['0', 'D', '.0', '10', '6c', ''], zipf(user_rank, 53, 6)) AS useragentminor,
    1::smallint AS cookieenable,
    (NOT chance(user_rank, 54, 0.02))::smallint AS javascriptenable,
    chance(user_rank, 55, 0.06)::smallint AS ismobile,
    CASE WHEN chance(user_rank, 55, 0.06) THEN 1 + zipf(user_rank, 56, 100) ELSE 0 END::smallint AS mobilephone,
    CASE WHEN chance(user_rank, 55, 0.06) AND chance(user_rank, 57, 0.85)
        THEN (SELECT pick(phones, zipf(user_rank, 58, 16)) FROM words) || CASE WHEN chance(user_rank, 59, 0.2) THEN ' ' || below(user_rank, 60, 9) ELSE '' END
        ELSE '' END AS mobilephonemodel,
    '' AS params,
    below(user_rank, 61, 4000000)::integer AS ipnetworkid,
    CASE WHEN phrase_number IS NOT NULL THEN 2 WHEN referer = '' THEN 0 ELSE pick([-1, 1, 3, 6, 8], zipf(i, 62, 5)) END::smallint AS traficsourceid,
    CASE WHEN phrase_number IS NULL THEN 0 WHEN came < 0.8 THEN 2 ELSE 3 + zipf(i, 63, 60) END::smallint AS searchengineid,
    search_phrase AS searchphrase,
    CASE WHEN chance(i, 64, 0.0063) THEN 2 + zipf(i, 65, 60) ELSE 0 END::smallint AS advengineid,
    chance(i, 66, 0.001)::smallint AS isartifical,
    CASE WHEN chance(i, 67, 0.1) THEN 0 ELSE 300 + below(i, 68, 1600) END::smallint AS windowclientwidth,
    CASE WHEN chance(i, 67, 0.1) THEN 0 ELSE 200 + below(i, 69, 900) END::smallint AS windowclientheight,
    pick([-1, 135, 2, 3, 0], zipf(user_rank, 70, 5))::smallint AS clienttimezone,
    moment + to_seconds(below(i, 71, 120) - 60) AS clienteventtime,
    CASE WHEN chance(user_rank, 72, 0.5) THEN 5 ELSE 0 END::smallint AS silverlightversion1,
    chance(user_rank, 72, 0.3)::smallint AS silverlightversion2,
    CASE WHEN chance(user_rank, 72, 0.3) THEN 10411 + below(user_rank, 73, 9000) ELSE 0 END::integer AS silverlightversion3,
    0::smallint AS silverlightversion4,
    pick(['utf-8', 'windows', 'windows-1251;charset', 'koi8-r'], zipf(counter, 74, 4)) AS pagecharset,
    below(counter, 75, 1500)::integer AS codeversion,
    chance(i, 76, 0.15)::smallint AS islink,
    chance(i, 77, 0.01)::smallint AS isdownload,
    chance(i, 78, 0.6)::smallint AS isnotbounce,
    bigint63(user_rank, 79) AS funiqid,
    CASE WHEN chance(i, 80, 0.01) THEN url ELSE '' END AS originalurl,
    below(i, 81, 1073741824)::integer AS hid,
    0::smallint AS isoldcounter,
    chance(i, 82, 0.05)::smallint AS isevent,
    0::smallint AS isparameter,
    chance(i, 83, 0.06)::smallint AS dontcounthits,
    0::smallint AS withhash,
    pick(['5', 'g', 'S', 'D'], zipf(i, 84, 4)) AS hitcolor,
    moment + to_seconds(below(user_rank, 85, 12) * 3600) AS localeventtime,
    zipf(user_rank, 86, 55)::smallint AS age,
    below(user_rank, 87, 3)::smallint AS sex,
    below(user_rank, 88, 5)::smallint AS income,
    below(user_rank, 89, 20000)::smallint AS interests,
    zipf(user_rank, 90, 100)::smallint AS robotness,
    signed32(user_rank, 91) AS remoteip,
    CASE WHEN chance(i, 92, 0.3) THEN signed32(i, 93) ELSE -1 END AS windowname,
    CASE WHEN chance(i, 94, 0.3) THEN signed32(i, 95) ELSE -1 END AS openername,
    CASE WHEN chance(i, 96, 0.2) THEN -1 ELSE zipf(i, 97, 50) END::smallint AS historylength,
    pick(['S0', 'ru', 'en', 'uk', '\0'], zipf(user_rank, 98, 5)) AS browserlanguage,
    pick(['u*', 'S!', 'RU', 'UA', '\0'], zipf(user_rank, 99, 5)) AS browsercountry,
    CASE WHEN chance(i, 100, 0.002) THEN pick(['vkontakte', 'facebook', 'twitter'], zipf(i, 101, 3)) ELSE '' END AS socialnetwork,
    CASE WHEN chance(i, 100, 0.002) THEN pick(['like', 'share', 'login'], zipf(i, 102, 3)) ELSE '' END AS socialaction,
    CASE WHEN chance(i, 103, 0.002) THEN 404 ELSE 0 END::smallint AS httperror,
    skewed(i, 104, 30000, 4)::integer AS sendtiming,
    skewed(i, 105, 3000, 4)::integer AS dnstiming,
    skewed(i, 106, 3000, 4)::integer AS connecttiming,
    skewed(i, 107, 8000, 3)::integer AS responsestarttiming,
    skewed(i, 108, 8000, 3)::integer AS responseendtiming,
    skewed(i, 109, 20000, 3)::integer AS fetchtiming,
    CASE WHEN chance(i, 110, 0.03) THEN 1 + zipf(i, 111, 10) ELSE 0 END::smallint AS socialsourcenetworkid,
    CASE WHEN chance(i, 110, 0.01) THEN 'http://vk.com/' || below(i, 112, 50000) ELSE '' END AS socialsourcepage,
    CASE WHEN chance(i, 113, 0.004) THEN below(i, 114, 100000) ELSE 0 END AS paramprice,
    CASE WHEN chance(i, 113, 0.004) THEN 'order ' || below(i, 115, 1000000) ELSE '' END AS paramorderid,
    CASE WHEN chance(i, 113, 0.004) THEN pick(['RUB', 'USD'], below(i, 116, 2)) ELSE 'NH' || chr(28) END AS paramcurrency,
    CASE WHEN chance(i, 113, 0.004) THEN 643 ELSE 0 END::smallint AS paramcurrencyid,
    CASE WHEN chance(i, 117, 0.01) THEN pick(['direct', 'market', 'begun'], zipf(i, 118, 3)) ELSE '' END AS openstatservicename,
    CASE WHEN chance(i, 117, 0.01) THEN (below(i, 119, 20000))::varchar ELSE '' END AS openstatcampaignid,
    CASE WHEN chance(i, 117, 0.01) THEN (below(i, 120, 200000))::varchar ELSE '' END AS openstatadid,
    CASE WHEN chance(i, 117, 0.01) THEN 'yandex.ru:premium' ELSE '' END AS openstatsourceid,
    CASE WHEN chance(i, 121, 0.03) THEN pick(['yandex', 'google', 'mail', 'vk'], zipf(i, 122, 4)) ELSE '' END AS utmsource,
    CASE WHEN chance(i, 121, 0.03) THEN pick(['cpc', 'banner', 'email'], zipf(i, 123, 3)) ELSE '' END AS utmmedium,
    CASE WHEN chance(i, 121, 0.03) THEN 'campaign ' || zipf(i, 124, 3000) ELSE '' END AS utmcampaign,
    CASE WHEN chance(i, 121, 0.01) THEN 'content ' || zipf(i, 125, 9000) ELSE '' END AS utmcontent,
    CASE WHEN chance(i, 121, 0.01) THEN phrase(below(i, 126, 4000)) ELSE '' END AS utmterm,
    CASE WHEN chance(i, 127, 0.01) THEN 'from ' || zipf(i, 128, 500) ELSE '' END AS fromtag,
    chance(i, 129, 0.005)::smallint AS hasgclid,
    CASE WHEN counter = 62 AND came >= 0.2 AND came < 0.6 THEN 3594120000172545465 ELSE bigint63(referer, 130) END AS refererhash,
    CASE WHEN counter = 62 AND page = 0 THEN 2868770270353813622 ELSE bigint63(url, 131) END AS urlhash,
    CASE WHEN chance(i, 132, 0.02) THEN below(i, 133, 100000) ELSE 0 END::integer AS clid
FROM texts;
