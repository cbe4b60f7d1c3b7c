/* Caliper's annotations, as regions of MIOT. Compiled from two files, and as C++. */
#include <miot_caliper.h>
#include <pthread.h>

#ifdef __cplusplus
extern "C"
#endif
void end_elsewhere(void);

#ifdef ELSEWHERE

void end_elsewhere(void)
{
    CALI_MARK_END("elsewhere");
}

#else

static void function(void)
{
    CALI_MARK_FUNCTION_BEGIN;
    char name[] = "copied";
    cali_begin_string_byname(name, "a value");
    name[0] = 'x';
    cali_end_byname("copied");
    CALI_MARK_FUNCTION_END;
}

static void *thread(void *unused)
{
    /* The region of the other thread stays open. */
    cali_end_region("outer");
    cali_begin_region("of the thread");
    cali_end_region("of the thread");
    return unused;
}

int main(void)
{
    cali_end_region("never begun");
    CALI_MARK_PHASE_BEGIN("outer");
    CALI_MARK_LOOP_BEGIN(loop, "mainloop");
    for (int i = 0; i < 2; i++) {
        CALI_MARK_ITERATION_BEGIN(loop, i);
        CALI_MARK_ITERATION_END(loop);
    }
    CALI_MARK_LOOP_END(loop);
    function();
    cali_begin_int_byname("level", -3);
    cali_begin_double_byname("ratio", 0.5);
    /* Not the innermost. */
    cali_end_byname("level");
    cali_end_byname("ratio");
    CALI_MARK_BEGIN("elsewhere");
    end_elsewhere();
    pthread_t other;
    pthread_create(&other, NULL, thread, NULL);
    pthread_join(other, NULL);
    CALI_MARK_PHASE_END("outer");
    return 0;
}

#endif
