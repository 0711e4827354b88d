#pragma once
#include "common.cuh"
#define KD_FACTOR 2.0f
