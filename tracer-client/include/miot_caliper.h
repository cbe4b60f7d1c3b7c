/*
 * Regions of MIOT by the names of Caliper's annotations, for programs that have them: compile with
 *
 *     cc -include miot_caliper.h ... $(pkg-config --cflags --libs miot)
 *
 * or include this file instead of <caliper/cali.h>. A program that is linked with Caliper too
 * uses Caliper's functions, because those of this file are weak.
 *
 * Each thread has its own stack of regions. An end ends the innermost region with its name, and
 * does nothing without one. Names are copied. For C99 and C++ with the compilers of GNU and LLVM.
 */

#ifndef MIOT_CALIPER_H
#define MIOT_CALIPER_H

#include <miot.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open region of a thread. */
struct miot_caliper_region {
  struct miot_caliper_region *outer;
  struct miot_region region;
  /* Its name, and from here its attributes, each with a NUL at the end. */
  char *attributes;
  char name[1];
};

/* The innermost open region of this thread. */
__attribute__((weak)) __thread struct miot_caliper_region *miot_caliper_open;

/* Begins a region. `value` is a text, or NULL; `number` follows it, if it is not MIOT_NONE. */
__attribute__((weak)) void miot_caliper_begin(const char *name, const char *value, uint64_t number)
{
  size_t length = strlen(name), attributes = 0;
  struct miot_caliper_region *open;
  if (miot_dormant())
    return;
  if (value || number != MIOT_NONE)
    attributes = length + 1 + (value ? strlen(value) : 0);
  open = (struct miot_caliper_region *)malloc(sizeof *open + length + 1 + attributes);
  if (!open)
    return;
  memcpy(open->name, name, length + 1);
  open->attributes = open->name + length + 1;
  if (attributes)
    snprintf(open->attributes, attributes + 1, "%s=%s", name, value ? value : "");
  else
    open->attributes[0] = 0;
  open->outer = miot_caliper_open;
  open->region = miot_region_begin(open->name, attributes ? open->attributes : NULL, number);
  miot_caliper_open = open;
}

/* A region with the name of an attribute and its value: "epoch" with "epoch=" and 3. */
__attribute__((weak)) void cali_begin_int_byname(const char *attribute, int value)
{
  char text[16];
  if (value >= 0) {
    miot_caliper_begin(attribute, NULL, (uint64_t)value);
  } else {
    snprintf(text, sizeof text, "%d", value);
    miot_caliper_begin(attribute, text, MIOT_NONE);
  }
}

__attribute__((weak)) void cali_begin_double_byname(const char *attribute, double value)
{
  char text[32];
  snprintf(text, sizeof text, "%.17g", value);
  miot_caliper_begin(attribute, text, MIOT_NONE);
}

__attribute__((weak)) void cali_begin_string_byname(const char *attribute, const char *value)
{
  miot_caliper_begin(attribute, value, MIOT_NONE);
}

__attribute__((weak)) void cali_begin_byname(const char *attribute)
{
  miot_caliper_begin(attribute, NULL, MIOT_NONE);
}

__attribute__((weak)) void cali_end_byname(const char *attribute)
{
  struct miot_caliper_region **at = &miot_caliper_open, *open;
  while (*at && strcmp((*at)->name, attribute) != 0)
    at = &(*at)->outer;
  open = *at;
  if (!open)
    return;
  *at = open->outer;
  miot_region_end(&open->region, 0);
  free(open);
}

__attribute__((weak)) void cali_begin_region(const char *name)
{
  cali_begin_byname(name);
}

__attribute__((weak)) void cali_end_region(const char *name)
{
  cali_end_byname(name);
}

__attribute__((weak)) void cali_begin_phase(const char *name)
{
  cali_begin_byname(name);
}

__attribute__((weak)) void cali_end_phase(const char *name)
{
  cali_end_byname(name);
}

__attribute__((weak)) void cali_begin_comm_region(const char *name)
{
  cali_begin_byname(name);
}

__attribute__((weak)) void cali_end_comm_region(const char *name)
{
  cali_end_byname(name);
}

#ifdef __cplusplus
}
#endif

#define CALI_MARK_BEGIN(name) cali_begin_region(name)
#define CALI_MARK_END(name) cali_end_region(name)
#define CALI_MARK_FUNCTION_BEGIN cali_begin_region(__func__)
#define CALI_MARK_FUNCTION_END cali_end_region(__func__)
#define CALI_MARK_PHASE_BEGIN(name) cali_begin_phase(name)
#define CALI_MARK_PHASE_END(name) cali_end_phase(name)
#define CALI_MARK_COMM_REGION_BEGIN(name) cali_begin_comm_region(name)
#define CALI_MARK_COMM_REGION_END(name) cali_end_comm_region(name)
/* A loop is a region, and so is each of its iterations: "iteration" with the number. */
#define CALI_MARK_LOOP_BEGIN(id, name) \
  const char *miot_caliper_loop_##id = (name); \
  cali_begin_region(miot_caliper_loop_##id)
#define CALI_MARK_LOOP_END(id) cali_end_region(miot_caliper_loop_##id)
#define CALI_MARK_ITERATION_BEGIN(id, number) cali_begin_int_byname("iteration", (int)(number))
#define CALI_MARK_ITERATION_END(id) cali_end_byname("iteration")

#endif
