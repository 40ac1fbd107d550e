/* Loaded into a running CPython: runs one Python expression on a thread of its own, then is idle.

   Built by injecting.py with -DEXPRESSION="...". Symbols are looked up at run time: an undefined
   one would end the process that it is loaded into. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

static void *enter(void *unused) {
    int (*ready)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    int (*take)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*give)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    if (ready && take && give && run && ready()) {
        int state = take();
        run(EXPRESSION);
        give(state);
    }
    return unused;
}

__attribute__((constructor)) static void loaded(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, enter, 0) == 0)
        pthread_detach(thread);
}
