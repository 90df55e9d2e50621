torch=$(python -c "import torch; print(torch.__path__[0])")
g++ -std=c++20 server.cpp -o server -I"$torch/include" -I"$torch/include/torch/csrc/api/include" \
    -L"$torch/lib" -Wl,-rpath,"$torch/lib" -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10
