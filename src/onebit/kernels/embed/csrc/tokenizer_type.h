#ifndef ONEBIT_TOKENIZER_TYPE_H
#define ONEBIT_TOKENIZER_TYPE_H

#include "pool.h"

extern PyType_Spec tokenizer_spec;

#endif
