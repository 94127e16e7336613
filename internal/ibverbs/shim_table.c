//go:build linux && cgo

#include <pthread.h>

#include "lib.h"

// What the libraries give back with an event (cq_context and the like) is the key of a
// place in this table, not an address: an event of an object that was destroyed, or that
// somebody else in the process made on a shared context, finds nothing.

// KEY_BITS of a key are the place, from 1, the rest are its generation.
#define KEY_BITS (sizeof(uintptr_t) * 4)
#define KEY_MASK (((uintptr_t)1 << KEY_BITS) - 1)

struct place {
	void *object; // NULL: free
	uintptr_t generation;
	uintptr_t next; // free place behind this one, from 1; 0: none
};

static struct {
	pthread_mutex_t mu;
	struct place *places;
	uintptr_t n, size, vacant;
} table = {.mu = PTHREAD_MUTEX_INITIALIZER};

void *vb_keep(void *object)
{
	struct place *p;
	uintptr_t i, size;

	pthread_mutex_lock(&table.mu);
	i = table.vacant;
	if (i) {
		table.vacant = table.places[i - 1].next;
	} else {
		if (table.n == table.size) {
			size = table.size ? 2 * table.size : 64;
			p = size < KEY_MASK ? realloc(table.places, size * sizeof(*p)) : NULL;
			if (!p) {
				pthread_mutex_unlock(&table.mu);
				return NULL;
			}
			table.places = p;
			table.size = size;
		}
		i = ++table.n;
		table.places[i - 1].generation = 0;
	}
	p = &table.places[i - 1];
	p->object = object;
	p->generation = (p->generation + 1) & KEY_MASK;
	i |= p->generation << KEY_BITS;
	pthread_mutex_unlock(&table.mu);
	return (void *)i;
}

// at gives the place of a key, if that is taken by the same object still.
static struct place *at(const void *key)
{
	uintptr_t i = (uintptr_t)key & KEY_MASK;
	struct place *p;

	if (i == 0 || i > table.n)
		return NULL;
	p = &table.places[i - 1];
	return p->object && p->generation == (uintptr_t)key >> KEY_BITS ? p : NULL;
}

void *vb_kept(const void *key, const void *theirs)
{
	struct place *p;
	void *o;

	pthread_mutex_lock(&table.mu);
	p = at(key);
	o = p ? p->object : NULL;
	pthread_mutex_unlock(&table.mu);
	return o && *(void **)o == theirs ? o : NULL;
}

void vb_forget(const void *key)
{
	struct place *p;

	pthread_mutex_lock(&table.mu);
	p = at(key);
	if (p) {
		p->object = NULL;
		p->next = table.vacant;
		table.vacant = (uintptr_t)key & KEY_MASK;
	}
	pthread_mutex_unlock(&table.mu);
}
