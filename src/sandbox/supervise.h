/*
 * The entry of `husk supervise`, the process that looks after one sandbox. libhusk starts it; people do not.
 */
#ifndef HUSK_SUPERVISE_H
#define HUSK_SUPERVISE_H

int supervise_main(int argc, char **argv);

#endif
