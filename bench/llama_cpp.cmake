# CMake reads this where it enters llama.cpp. The library of its programs (arguments, downloads, chat
# templates) is 57 of 140 steps of the build, and llama-cpp-python, which asks for it, never calls it.
set(LLAMA_BUILD_COMMON OFF)
