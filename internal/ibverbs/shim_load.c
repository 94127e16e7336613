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

// find asks for the version that this package was written for. Where the C library knows
// no versions, as musl, the newest is the only one, and compatible.
static void *find(void *lib, const char *family, const struct symbol *s)
{
#ifdef __GLIBC__
	char version[32];

	snprintf(version, sizeof(version), "%s_%s", family, s->version);
	return dlvsym(lib, s->name, version);
#else
	(void)family;
	return dlsym(lib, s->name);
#endif
}

// load finds all symbols of a library, or none. Libraries stay loaded: their threads,
// and the contexts of devices, outlive every user here.
static int load(const char *file, const char *family, const struct symbol *s, size_t n, char *tried, size_t size)
{
	void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	size_t i;

	if (!lib) {
		snprintf(tried, size, "%s", dlerror());
		return 0;
	}
	for (i = 0; i < n; i++) {
		*s[i].to = find(lib, family, &s[i]);
		if (!*s[i].to && s[i].must) {
			snprintf(tried, size, "%s: has no %s of version %s_%s", file, s[i].name, family, s[i].version);
			return 0;
		}
	}
	return 1;
}

static void load_all(void)
{
	loaded.verbs = load("libibverbs.so.1", "IBVERBS", verbs_symbols, sizeof(verbs_symbols) / sizeof(verbs_symbols[0]),
			    loaded.verbs_tried, sizeof(loaded.verbs_tried));
	loaded.cm = load("librdmacm.so.1", "RDMACM", cm_symbols, sizeof(cm_symbols) / sizeof(cm_symbols[0]),
			 loaded.cm_tried, sizeof(loaded.cm_tried));
}

const struct vb_loaded *vb_load(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_all);
	return &loaded;
}
