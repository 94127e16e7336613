//go:build linux && cgo

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "lib.h"

struct vb_lib vb;

static struct vb_loaded loaded;

struct symbol {
	const char *name, *version;
	void **to;
	int must;
};

#define VB_SYMBOL(must, version, result, name, params) {#name, version, (void **)&vb.name, must},

static const struct symbol verbs_symbols[] = {VB_VERBS(VB_SYMBOL)};
static const struct symbol cm_symbols[] = {VB_CM(VB_SYMBOL)};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

// find asks for the version that this package was written for. Where the C library knows
// no versions, as musl, the newest is the only one, and compatible.
static void *find(void *lib, const char *version, const char *name)
{
#ifdef __GLIBC__
	return dlvsym(lib, name, version);
#else
	(void)version;
	return dlsym(lib, name);
#endif
}

// load finds all symbols of a library, or none. Libraries stay loaded: their threads,
// and the contexts of devices, outlive every user here.
static void load(struct vb_library *l, const char *file, const char *family, const struct symbol *s, size_t n)
{
	void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	char version[32];
	size_t i;

	if (!lib) {
		snprintf(l->why, sizeof(l->why), "%s", dlerror());
		return;
	}
	for (i = 0; i < n; i++) {
		snprintf(version, sizeof(version), "%s_%s", family, s[i].version);
		*s[i].to = find(lib, version, s[i].name);
		if (*s[i].to || !s[i].must)
			continue;
		snprintf(l->lacks, sizeof(l->lacks), "%s", s[i].name);
		snprintf(l->version, sizeof(l->version), "%s", version);
		for (i = 0; i < n; i++)
			*s[i].to = NULL;
		return;
	}
	l->there = 1;
}

// allow_destroy tells libibverbs, which reads it when it begins, to free what belongs to a
// device that was removed, where it would otherwise leave it for ever. Its condition, that
// nobody takes events meanwhile, is kept by the locks of the Go side. Who has set the
// variable is not overruled.
static void allow_destroy(void) { setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 0); }

static void load_all(void)
{
	allow_destroy();
	load(&loaded.verbs, VB_LIBIBVERBS, "IBVERBS", verbs_symbols, COUNT(verbs_symbols));
	load(&loaded.cm, VB_LIBRDMACM, "RDMACM", cm_symbols, COUNT(cm_symbols));
	if (!loaded.verbs.there)
		loaded.cm.there = 0; // its contexts are of no use then
}

const struct vb_loaded *vb_load(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_all);
	return &loaded;
}

int vb_has_verbs(void) { return loaded.verbs.there; }
int vb_has_cm(void) { return loaded.cm.there; }
