/* Preloaded library that does nothing, to measure the cost of loading a library. */
int miot_bench_nothing(void)
{
	return 0;
}
