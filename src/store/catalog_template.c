/*
 * Templates in the catalog: versions by id, and the version that each name points at. An old version stays for as long as a
 * sandbox or snapshot was made from it, because neither can be restored without its root image. Called by the template
 * builder, by create and by gc. A version that a hibernated sandbox needs must never count as unused.
 */
#include "store/catalog_kit.h"

static const struct field template_fields[] = {
	FIELD(catalog_template, FIELD_TEXT, name),         FIELD(catalog_template, FIELD_TEXT, digest),
	FIELD(catalog_template, FIELD_TEXT, description),  FIELD(catalog_template, FIELD_TEXT, isolation),
	FIELD(catalog_template, FIELD_INT64, created_ms),  FIELD(catalog_template, FIELD_UINT64, bytes),
	FIELD(catalog_template, FIELD_UINT64, disk_bytes), FIELD(catalog_template, FIELD_BOOL, current),
	FIELD(catalog_template, FIELD_TEXT, tenant),       FIELD(catalog_template, FIELD_TEXT, egress),
};

/* What a view may use: the tenant's own templates, and those of the instance with other names. ?1 is the tenant. */
#define USABLE                                                                                                         \
	"current AND (tenant IS ?1 OR (tenant IS NULL AND NOT EXISTS (SELECT 1 FROM templates AS own "                 \
	"WHERE own.name = templates.name AND own.current AND own.tenant = ?1)))"
static const struct table templates = { "templates", sizeof(struct catalog_template), template_fields,
					ARRAY_SIZE(template_fields) };

void catalog_template_free(struct catalog_template *row)
{
	table_free_row(&templates, row);
}

void catalog_template_list_free(struct catalog_template **list)
{
	table_free_list(&templates, (void **)list);
}

static int not_found(struct catalog *catalog, const char *word, struct husk_error *err)
{
	return catalog_not_found(catalog, "template", word, "SELECT name FROM templates WHERE " USABLE,
				 "husk template ls", err);
}

static int insert_template(struct catalog *catalog, const struct catalog_template *row, struct husk_error *err)
{
	struct catalog_template version = *row;

	version.current = true;
	version.tenant = (char *)catalog->view.tenant;
	/* A name may return to an earlier version: then the row of that version is written again. */
	if (catalog_run(catalog, "DELETE FROM templates WHERE name = ?1 AND digest = ?2 AND tenant IS ?3",
			ARGUMENTS(text(row->name), text(row->digest), text(version.tenant)), err) < 0 ||
	    catalog_run(catalog, "UPDATE templates SET current = 0 WHERE name = ?1 AND current AND tenant IS ?2",
			ARGUMENTS(text(row->name), text(version.tenant)), err) < 0)
		return -1;
	return table_insert(catalog, &templates, &version, err);
}

int catalog_template_add(struct catalog *catalog, const struct catalog_template *row, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, insert_template(catalog, row, err), err);
}

static int insert_old(struct catalog *catalog, const struct catalog_template *row, struct husk_error *err)
{
	struct catalog_template version = *row;
	int64_t known = 0;

	version.current = false;
	version.tenant = (char *)catalog->view.tenant;
	if (catalog_number(catalog, "SELECT 1 FROM templates WHERE digest = ?1 LIMIT 1", ARGUMENTS(text(row->digest)),
			   &known, err) < 0)
		return -1;
	return known ? 0 : table_insert(catalog, &templates, &version, err);
}

int catalog_template_keep(struct catalog *catalog, const struct catalog_template *row, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, insert_old(catalog, row, err), err);
}

int catalog_template_get(struct catalog *catalog, const char *name, struct catalog_template **out,
			 struct husk_error *err)
{
	void *row = NULL;

	if (!name || !*name)
		return husk_fail(err, HUSK_INVALID, "no template given: pass its name (husk template ls)");
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_one(catalog, &templates, "WHERE " USABLE " AND name = ?2",
			       ARGUMENTS(text(catalog->view.tenant), text(name)), &row, err);

	if (result == 0)
		result = not_found(catalog, name, err);
	if (catalog_finish(catalog, result, err) < 0) {
		catalog_template_free(row);
		return -1;
	}
	*out = row;
	return 0;
}

static int list_templates(struct catalog *catalog, const char *tail, const struct argument *arguments,
			  struct catalog_template ***out, struct husk_error *err)
{
	void **list = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	if (catalog_finish(catalog, table_all(catalog, &templates, tail, arguments, &list, err), err)) {
		table_free_list(&templates, list);
		return -1;
	}
	*out = (struct catalog_template **)list;
	return 0;
}

int catalog_template_list(struct catalog *catalog, bool with_old, struct catalog_template ***out,
			  struct husk_error *err)
{
	if (with_old)
		return list_templates(catalog, "ORDER BY name, current DESC, created_ms DESC", NULL, out, err);
	return list_templates(catalog, "WHERE " USABLE " ORDER BY name", ARGUMENTS(text(catalog->view.tenant)), out,
			      err);
}

/* Two names may share one version: the version is unused if no name points at it. */
#define UNUSED                                                                                                         \
	"NOT EXISTS (SELECT 1 FROM templates WHERE digest = candidate.digest AND current) "                            \
	"AND NOT EXISTS (SELECT 1 FROM snapshots WHERE template_digest = candidate.digest) "                           \
	"AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE template_digest = candidate.digest AND state <> 'ended') "

int catalog_template_unused(struct catalog *catalog, struct catalog_template ***out, struct husk_error *err)
{
	return list_templates(catalog, "AS candidate WHERE " UNUSED "GROUP BY digest ORDER BY created_ms", NULL, out,
			      err);
}

/* Why a tenant's removal changed nothing: the template belongs to the instance, or does not exist. */
static int not_removed(struct catalog *catalog, const char *name, struct husk_error *err)
{
	int64_t known = 0;

	if (catalog_number(catalog, "SELECT 1 FROM templates WHERE name = ?1 AND current AND tenant IS NULL",
			   ARGUMENTS(text(name)), &known, err) < 0)
		return -1;
	if (!known)
		return not_found(catalog, name, err);
	return husk_fail(err, HUSK_DENIED, "template '%s' belongs to the instance; only its owner can remove it", name);
}

int catalog_template_remove(struct catalog *catalog, const char *name, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed =
		catalog_run(catalog, "UPDATE templates SET current = 0 WHERE name = ?1 AND current AND tenant IS ?2",
			    ARGUMENTS(text(name), text(catalog->view.tenant)), err);

	if (changed == 0)
		changed = not_removed(catalog, name, err);
	return catalog_finish(catalog, changed, err) < 0 ? -1 : 0;
}

static int forget(struct catalog *catalog, const char *digest, catalog_template_take take, void *data,
		  struct husk_error *err)
{
	int64_t unused = 0;

	if (catalog_number(catalog, "SELECT 1 FROM templates AS candidate WHERE digest = ?1 AND " UNUSED "LIMIT 1",
			   ARGUMENTS(text(digest)), &unused, err) < 0)
		return -1;
	if (!unused)
		return 0;
	if (take(data, err) < 0)
		return -1;
	return catalog_run(catalog, "DELETE FROM templates WHERE digest = ?1", ARGUMENTS(text(digest)), err) < 0 ? -1
														 : 1;
}

int catalog_template_forget(struct catalog *catalog, const char *digest, catalog_template_take take, void *data,
			    struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, forget(catalog, digest, take, data, err), err);
}
