/* Preloaded: a library that does nothing, for what loading one costs. */
int miot_bench_nothing(void)
{
	return 0;
}
