/*
 * Remembers which addresses the resolver returned for which names, and until when. leash_dns.c writes, leash_flow.c reads:
 * a rule with a name opens exactly these addresses. The book is bounded. When it is full, the entry that expires first is
 * dropped, which only reduces reach.
 */
#include "net/leash_proxy.h"

/* A connection follows its lookup, so an address stays open a little longer than its TTL. */
#define GRACE_MS 30000

static bool is_live(const struct book_entry *entry, int64_t now)
{
	return entry->name && entry->expires_ms > now;
}

void book_add(struct book *book, const char *name, uint32_t address, uint32_t ttl)
{
	int64_t now = time_monotonic_ms();
	struct book_entry *place = NULL;

	pthread_mutex_lock(&book->lock);
	for (size_t i = 0; i < BOOK_MAX; i++) {
		struct book_entry *entry = &book->entries[i];

		if (entry->name && entry->address == address && strcmp(entry->name, name) == 0) {
			place = entry;
			break;
		}
		if (!place || entry->expires_ms < place->expires_ms)
			place = entry;
	}
	if (!place->name || place->address != address || strcmp(place->name, name) != 0) {
		free(place->name);
		place->name = strdup(name);
		place->address = address;
		place->expires_ms = 0;
	}
	place->expires_ms = place->name ? MAX(place->expires_ms, now + (int64_t)ttl * 1000 + GRACE_MS) : 0;
	pthread_mutex_unlock(&book->lock);
}

bool book_has(struct book *book, const char *name, uint32_t address)
{
	int64_t now = time_monotonic_ms();
	bool found = false;

	pthread_mutex_lock(&book->lock);
	for (size_t i = 0; i < BOOK_MAX && !found; i++) {
		const struct book_entry *entry = &book->entries[i];

		found = entry->address == address && is_live(entry, now) && strcmp(entry->name, name) == 0;
	}
	pthread_mutex_unlock(&book->lock);
	return found;
}

bool book_name(struct book *book, uint32_t address, char *name)
{
	int64_t now = time_monotonic_ms(), newest = 0;

	pthread_mutex_lock(&book->lock);
	for (size_t i = 0; i < BOOK_MAX; i++) {
		const struct book_entry *entry = &book->entries[i];

		if (entry->address != address || !is_live(entry, now) || entry->expires_ms <= newest)
			continue;
		newest = entry->expires_ms;
		snprintf(name, POLICY_NAME_MAX + 1, "%s", entry->name);
	}
	pthread_mutex_unlock(&book->lock);
	return newest != 0;
}

size_t book_addresses(struct book *book, const char *name, uint32_t *addresses, size_t max, uint32_t *ttl)
{
	int64_t now = time_monotonic_ms(), ends = INT64_MAX;
	size_t count = 0;

	pthread_mutex_lock(&book->lock);
	for (size_t i = 0; i < BOOK_MAX && count < max; i++) {
		const struct book_entry *entry = &book->entries[i];

		/* The extra time is for connections, not for answers. */
		if (!is_live(entry, now + GRACE_MS) || strcmp(entry->name, name) != 0)
			continue;
		addresses[count++] = entry->address;
		ends = MIN(ends, entry->expires_ms - GRACE_MS);
	}
	pthread_mutex_unlock(&book->lock);
	if (count)
		*ttl = (uint32_t)((ends - now + 999) / 1000);
	return count;
}

bool book_has_hold(struct book *book, const struct policy *policy, uint32_t address, uint16_t port)
{
	int64_t now = time_monotonic_ms();
	bool found = false;

	if (policy->hold_count == 0)
		return false;
	pthread_mutex_lock(&book->lock);
	for (size_t i = 0; i < BOOK_MAX && !found; i++)
		found = book->entries[i].name && book->entries[i].address == address &&
			book->entries[i].expires_ms > now && policy_holds(policy, book->entries[i].name, port);
	pthread_mutex_unlock(&book->lock);
	return found;
}

bool book_has_secret(struct book *book, const struct policy *policy, uint32_t address, uint16_t port)
{
	int64_t now = time_monotonic_ms();
	bool found = false;

	if (policy->secret_count == 0)
		return false;
	pthread_mutex_lock(&book->lock);
	for (size_t i = 0; i < BOOK_MAX && !found; i++) {
		const struct book_entry *entry = &book->entries[i];

		found = entry->address == address && is_live(entry, now) &&
			policy_secret_for(policy, entry->name, port, 0) >= 0;
	}
	pthread_mutex_unlock(&book->lock);
	return found;
}
